"""Migrations: numbered SQL files, each applied once, in order, in a transaction of its own, and recorded with a checksum.

A file that names `{private}` makes the API's own schema and is recorded there; the others make the projection and are
recorded in its schema. So the projection's schema can be dropped and rebuilt from the log while the other one stays.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import psycopg
from psycopg import sql

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import ConfigurationError, Unavailable
from jobstream.runtime.postgres import connect, private_schema

FILE_PATTERN: Final = r"^(\d{4})_[a-z0-9_]+\.sql$"
PLACEHOLDER: Final = "{private}"
LOCK_CLASS: Final = 0x6A6F6273  # "jobs": keeps our advisory locks apart from others' in the same database
LOCK_TIMEOUT: Final = "60s"  # another migration takes seconds; one that hangs is worth a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file. `checksum` is of its text as shipped, in hex."""

    number: int
    name: str
    text: str
    checksum: str
    private: bool


def load_migrations() -> tuple[Migration, ...]:
    """The files that this version of the code comes with, in order."""
    found = []
    for file in (resources.files("jobstream.projector") / "migrations").iterdir():
        if match := re.match(FILE_PATTERN, file.name):
            text = file.read_text(encoding="utf-8")
            found.append(
                Migration(
                    number=int(match[1]),
                    name=file.name,
                    text=text,
                    checksum=hashlib.sha256(text.encode()).hexdigest(),
                    private=PLACEHOLDER in text,
                )
            )
    return tuple(sorted(found, key=lambda migration: migration.number))


def migrate(settings: Settings) -> list[str]:
    """Bring the database to this version of the code; returns the names of the files applied now.

    Raises ConfigurationError where the database is newer than the code or an applied file was changed, Unavailable where
    Postgres does not answer or another migration holds the lock for a minute.
    """
    applied_now = []
    with connect(settings, autocommit=True) as connection:
        _lock(connection, settings)
        for schema in _schemas(settings).values():
            _make_schema(connection, schema)
        for migration in pending(connection, settings):
            _apply(connection, settings, migration)
            applied_now.append(migration.name)
    return applied_now


def pending(
    connection: psycopg.Connection[Any], settings: Settings, migrations: tuple[Migration, ...] | None = None
) -> list[Migration]:
    """What is still to be applied; raises ConfigurationError where the database and the code do not fit."""
    known = load_migrations() if migrations is None else migrations
    waiting = []
    for private, schema in _schemas(settings).items():
        mine = {migration.number: migration for migration in known if migration.private == private}
        waiting += _compare(schema, mine, _applied(connection, schema))
    return sorted(waiting, key=lambda migration: migration.number)


def require_migrated(connection: psycopg.Connection[Any], settings: Settings) -> None:
    """Raises ConfigurationError unless the database is exactly at this version of the code."""
    if waiting := pending(connection, settings):
        names = ", ".join(migration.name for migration in waiting)
        raise ConfigurationError(
            f"the schema {settings.postgres_schema} misses migrations ({names}): run `jobstream migrate`"
        )


def _compare(schema: str, known: Mapping[int, Migration], applied: Mapping[int, tuple[str, str]]) -> list[Migration]:
    for number, (name, checksum) in applied.items():
        if number not in known:
            raise ConfigurationError(
                f"the schema {schema} holds migration {name}, which this version of jobstream does not have: "
                "it is newer; install that version"
            )
        if known[number].checksum != checksum:
            raise ConfigurationError(
                f"migration {known[number].name} was changed after it was applied to the schema {schema}: restore "
                "the file and put the change into a new one"
            )
    return [migration for number, migration in known.items() if number not in applied]


def _schemas(settings: Settings) -> dict[bool, str]:
    return {False: settings.postgres_schema, True: private_schema(settings)}


def _lock(connection: psycopg.Connection[Any], settings: Settings) -> None:
    """Hold the right to migrate this schema until the connection closes."""
    connection.execute(sql.SQL("SET lock_timeout = {}").format(LOCK_TIMEOUT))
    try:
        connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [LOCK_CLASS, settings.postgres_schema])
    except psycopg.errors.LockNotAvailable as error:
        raise Unavailable(
            f"another migration of the schema {settings.postgres_schema} is running; try again when it has ended"
        ) from error


def _make_schema(connection: psycopg.Connection[Any], schema: str) -> None:
    # Not IF NOT EXISTS for the schema: that needs the right to make one even where an administrator has made it.
    if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone():
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.migrations (number integer PRIMARY KEY, name text NOT NULL, "
            "checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        ).format(sql.Identifier(schema))
    )


def _applied(connection: psycopg.Connection[Any], schema: str) -> dict[int, tuple[str, str]]:
    """Number → (name, checksum) of what the schema records; nothing where it does not exist."""
    if not connection.execute(
        "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'migrations'", [schema]
    ).fetchone():
        return {}
    rows = connection.execute(
        sql.SQL("SELECT number, name, checksum FROM {}.migrations ORDER BY number").format(sql.Identifier(schema))
    )
    return {number: (name, checksum) for number, name, checksum in rows}


def _apply(connection: psycopg.Connection[Any], settings: Settings, migration: Migration) -> None:
    private = sql.Identifier(private_schema(settings)).as_string(connection)
    with connection.transaction():
        connection.execute(migration.text.replace(PLACEHOLDER, private).encode())
        connection.execute(
            sql.SQL("INSERT INTO {}.migrations (number, name, checksum) VALUES (%s, %s, %s)").format(
                sql.Identifier(_schemas(settings)[migration.private])
            ),
            [migration.number, migration.name, migration.checksum],
        )
