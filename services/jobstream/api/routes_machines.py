"""Machines, for everybody with a key: what they offer, and how many jobs they hold. Never whose."""

import re
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from jobstream.api import cursors, queries, views
from jobstream.api.answers import MachinePage, MachineView, json_answer, problems
from jobstream.api.context import AnyCaller, context_of
from jobstream.api.models import PageQuery
from jobstream.api.problems import Problem
from jobstream.schemas.ids import MACHINE_ID_PATTERN

router = APIRouter(prefix=f"{views.API}/machines", tags=["machines"])

_MACHINE_ID: Final = re.compile(MACHINE_ID_PATTERN)
_SCOPE: Final = ("machines",)


@router.get("", summary="Machines by id, page by page", responses={200: {"model": MachinePage}, **problems(400)})
async def list_machines(request: Request, _: AnyCaller, asked: Annotated[PageQuery, Query()]) -> Response:
    after = "" if asked.cursor is None else cursors.read_name(_SCOPE, asked.cursor)
    rows = await context_of(request).database.rows(queries.MACHINES, {"after": after, "limit": asked.limit + 1})
    shown = rows[: asked.limit]
    cursor = cursors.write(_SCOPE, [shown[-1]["machine_id"]]) if len(rows) > len(shown) else None
    return json_answer(views.page("machines", map(views.machine, shown), cursor))


@router.get("/{machine_id}", summary="One machine", responses={200: {"model": MachineView}, **problems(404)})
async def get_machine(request: Request, _: AnyCaller, machine_id: str) -> Response:
    known = _MACHINE_ID.fullmatch(machine_id)
    rows = await context_of(request).database.rows(queries.MACHINE, {"machine_id": machine_id}) if known else []
    if not rows:
        raise Problem(404, f"there is no machine {machine_id[:64]!r}")
    return json_answer(views.machine(rows[0]))
