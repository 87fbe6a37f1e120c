"""The first keys of an installation, made beside the API: nobody could ask it for them."""

from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row

from jobstream.api import queries
from jobstream.api.keys import new_key
from jobstream.api.models import TenantRequest, parse
from jobstream.api.problems import Problem
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import ConfigurationError, Unavailable
from jobstream.runtime.postgres import connection_arguments, private_schema

KEY_NAME: Final = "made by jobstream admin init"


def admin_init(settings: Settings, *, tenant: str | None = None, force: bool = False) -> dict[str, str]:
    """Make an admin key and, where a tenant is named, that tenant (it may exist) and a key for it.

    Returns {"admin_key", "admin_key_id"} and, with a tenant, {"tenant", "api_key", "api_key_id"}: shown once, kept nowhere.
    Raises ConfigurationError where there is an admin key (unless `force`: then one more is made) or the tenant's name is
    no such, Unavailable where Postgres does not answer or is not migrated.
    """
    if tenant is not None:
        try:
            parse(TenantRequest, {"tenant": tenant})
        except Problem as problem:
            raise ConfigurationError(f"no name for a tenant: {problem.detail}") from None
    try:
        with psycopg.connect(**connection_arguments(settings), row_factory=dict_row) as connection:
            return _make(connection, settings, tenant, force)
    except psycopg.errors.UndefinedTable:
        raise Unavailable("the database is not migrated; run `jobstream migrate`") from None
    except psycopg.OperationalError as error:
        raise Unavailable(f"Postgres does not answer: {str(error).strip()}") from None


def _make(
    connection: psycopg.Connection[DictRow], settings: Settings, tenant: str | None, force: bool
) -> dict[str, str]:
    private = sql.Identifier(private_schema(settings))

    def rows(query: LiteralString, **parameters: Any) -> list[DictRow]:
        cursor = connection.execute(sql.SQL(query).format(private=private), parameters)
        return cursor.fetchall() if cursor.description else []

    rows(queries.LOCK_KEYS)  # two at once make one first key
    if rows(queries.ADMIN_KEY_EXISTS) and not force:
        raise ConfigurationError(
            "there is an admin key already; make tenants and keys with it, or use --force to make another one"
        )

    def make_key(owner: str | None) -> tuple[str, str]:
        key = new_key()
        rows(queries.INSERT_KEY, key_id=key.key_id, tenant=owner, secret=key.digest, name=KEY_NAME)
        return key.key, key.key_id

    key, key_id = make_key(None)
    made = {"admin_key": key, "admin_key_id": key_id}
    if tenant is not None:
        rows(queries.INSERT_TENANT, tenant=tenant)
        key, key_id = make_key(tenant)
        made |= {"tenant": tenant, "api_key": key, "api_key_id": key_id}
    return made
