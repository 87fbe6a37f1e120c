"""Migrations on a real database: once, in order, never over what was changed or is newer."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from jobstream.projector import migrate as module
from jobstream.projector.migrate import load_migrations, migrate, pending, require_migrated
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import ConfigurationError, Unavailable
from jobstream.runtime.postgres import connect


@pytest.fixture
def connection(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """To a database without our schemas."""
    with connect(settings, autocommit=True) as opened:
        yield opened


def test_applies_every_file_once(settings: Settings, connection: psycopg.Connection[Any]) -> None:
    assert migrate(settings) == [migration.name for migration in load_migrations()]
    assert migrate(settings) == []
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    require_migrated(connection, settings)


def test_refuses_a_file_that_was_changed(settings: Settings, connection: psycopg.Connection[Any]) -> None:
    migrate(settings)
    connection.execute("UPDATE migrations SET checksum = 'other' WHERE number = 1")
    with pytest.raises(ConfigurationError, match=r"0001_projection\.sql was changed"):
        migrate(settings)


def test_refuses_a_newer_database(settings: Settings, connection: psycopg.Connection[Any]) -> None:
    migrate(settings)
    connection.execute("INSERT INTO migrations (number, name, checksum) VALUES (9999, '9999_later.sql', '')")
    with pytest.raises(ConfigurationError, match=r"9999_later\.sql.*newer"):
        migrate(settings)


def test_a_dropped_projection_is_made_again_beside_the_private_schema(
    settings: Settings, connection: psycopg.Connection[Any]
) -> None:
    migrate(settings)
    private = f"{settings.postgres_schema}_private"
    connection.execute(f"INSERT INTO {private}.tenants (tenant) VALUES ('kept')".encode())
    connection.execute(f"DROP SCHEMA {settings.postgres_schema} CASCADE".encode())
    with pytest.raises(ConfigurationError, match="jobstream migrate"):
        require_migrated(connection, settings)
    assert migrate(settings) == [migration.name for migration in load_migrations() if not migration.private]
    assert connection.execute(f"SELECT tenant FROM {private}.tenants".encode()).fetchall() == [("kept",)]


def test_a_failed_file_leaves_nothing_behind(
    settings: Settings, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = module.Migration(
        number=9_998, name="9998_broken.sql", text="CREATE TABLE half (n int); SELECT 1/0", checksum="", private=False
    )
    known = (*load_migrations(), broken)
    monkeypatch.setattr(module, "load_migrations", lambda: known)
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(settings)
    assert pending(connection, settings) == [broken]
    assert connection.execute("SELECT to_regclass('half')").fetchone() == (None,)


def test_two_at_once_apply_each_file_once(settings: Settings, connection: psycopg.Connection[Any]) -> None:
    applied: list[list[str]] = []
    threads = [threading.Thread(target=lambda: applied.append(migrate(settings))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(names) for names in applied) == [0, 0, 0, len(load_migrations())]


def test_gives_up_on_a_migration_that_hangs(
    settings: Settings, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT", "50ms")
    connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [module.LOCK_CLASS, settings.postgres_schema])
    with pytest.raises(Unavailable, match="another migration"):
        migrate(settings)
