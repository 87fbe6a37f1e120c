"""Postgres connections: one schema for all tables, bounded waits, clear errors."""

from typing import Any, Final

import psycopg

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import Unavailable

CONNECT_TIMEOUT_S: Final = 5


def connection_arguments(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of a psycopg connection; tables are found by the search path, never named with a schema."""
    return {
        "conninfo": settings.postgres.get_secret_value(),
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "jobstream",
        "options": f"-c search_path={settings.postgres_schema} -c timezone=UTC",
    }


def connect(settings: Settings, *, autocommit: bool = False) -> psycopg.Connection[Any]:
    """A connection; raises Unavailable where Postgres does not answer."""
    try:
        return psycopg.connect(**connection_arguments(settings), autocommit=autocommit)
    except psycopg.OperationalError as error:
        raise Unavailable(f"Postgres does not answer: {str(error).strip()}") from error


def private_schema(settings: Settings) -> str:
    """The API's own schema (tenants and keys), which a rebuild of the projection leaves alone."""
    return f"{settings.postgres_schema}_private"
