"""Tenants and their API keys, for admins."""

import re
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from jobstream.api import cursors, queries, views
from jobstream.api.answers import (
    WITH_BODY,
    KeyPage,
    NewKeyView,
    TenantPage,
    TenantView,
    body_of,
    json_answer,
    problems,
)
from jobstream.api.context import Admin, context_of, read_object
from jobstream.api.keys import KEY_ID_FORM, new_key
from jobstream.api.models import KeyRequest, PageQuery, TenantRequest, parse
from jobstream.api.problems import Problem
from jobstream.schemas.ids import TENANT_PATTERN

router = APIRouter(prefix=f"{views.API}/tenants", tags=["tenants"])

_TENANT: Final = re.compile(TENANT_PATTERN)


@router.post(
    "",
    status_code=201,
    summary="Make a tenant",
    openapi_extra=body_of(TenantRequest),
    responses={201: {"model": TenantView}, **problems(409, *WITH_BODY)},
)
async def make_tenant(request: Request, _: Admin) -> Response:
    tenant = parse(TenantRequest, await read_object(request)).tenant
    rows = await context_of(request).database.write(queries.INSERT_TENANT, {"tenant": tenant})
    if not rows:
        raise Problem(409, f"the tenant {tenant!r} exists")
    return json_answer(views.tenant(rows[0]), 201)


@router.get("", summary="Tenants by name, page by page", responses={200: {"model": TenantPage}, **problems(400)})
async def list_tenants(request: Request, _: Admin, asked: Annotated[PageQuery, Query()]) -> Response:
    scope = ("tenants",)
    after = "" if asked.cursor is None else cursors.read_name(scope, asked.cursor)
    rows = await context_of(request).database.rows(queries.TENANTS, {"after": after, "limit": asked.limit + 1})
    shown = rows[: asked.limit]
    cursor = cursors.write(scope, [shown[-1]["tenant"]]) if len(rows) > len(shown) else None
    return json_answer(views.page("tenants", map(views.tenant, shown), cursor))


@router.post(
    "/{tenant}/keys",
    status_code=201,
    summary="Make an API key for a tenant",
    openapi_extra=body_of(KeyRequest),
    responses={201: {"model": NewKeyView}, **problems(404, *WITH_BODY)},
)
async def make_key(request: Request, _: Admin, tenant: str) -> Response:
    """The key is in this answer and never shown again. Keep it: a lost one can only be revoked and replaced."""
    name = parse(KeyRequest, await read_object(request)).name
    await _require(request, tenant)
    key = new_key()
    rows = await context_of(request).database.write(
        queries.INSERT_KEY, {"key_id": key.key_id, "tenant": tenant, "secret": key.digest, "name": name}
    )
    return json_answer(views.new_key(rows[0], key.key), 201)


@router.get("/{tenant}/keys", summary="A tenant's API keys", responses={200: {"model": KeyPage}, **problems(400, 404)})
async def list_keys(request: Request, _: Admin, tenant: str, asked: Annotated[PageQuery, Query()]) -> Response:
    """By id, with those that were revoked. The keys themselves are not kept."""
    await _require(request, tenant)
    scope = ("keys", tenant)
    after = "" if asked.cursor is None else cursors.read_name(scope, asked.cursor)
    parameters = {"tenant": tenant, "after": after, "limit": asked.limit + 1}
    rows = await context_of(request).database.rows(queries.KEYS, parameters)
    shown = rows[: asked.limit]
    cursor = cursors.write(scope, [shown[-1]["key_id"]]) if len(rows) > len(shown) else None
    return json_answer(views.page("keys", map(views.key, shown), cursor))


@router.delete(
    "/{tenant}/keys/{key_id}",
    status_code=204,
    summary="Revoke an API key",
    responses={204: {"description": "It is revoked, now or before"}, **problems(404)},
)
async def revoke_key(request: Request, _: Admin, tenant: str, key_id: str) -> Response:
    """Nobody gets in with it any more, after a second at most."""
    context = context_of(request)
    await _require(request, tenant)
    rows = []
    if KEY_ID_FORM.fullmatch(key_id):
        rows = await context.database.write(queries.REVOKE_KEY, {"tenant": tenant, "key_id": key_id})
    if not rows:
        raise Problem(404, f"the tenant {tenant!r} has no key {key_id[:64]!r}")
    context.keys.forget(key_id)
    return Response(status_code=204)


async def _require(request: Request, tenant: str) -> None:
    known = _TENANT.fullmatch(tenant)
    if not known or not await context_of(request).database.rows(queries.TENANT, {"tenant": tenant}):
        raise Problem(404, f"there is no tenant {tenant[:64]!r}")
