"""The API's connections to Postgres. Every wait is bounded, and a Postgres that is away is a 503, not a crash."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests

from jobstream.api.problems import Problem
from jobstream.runtime.config import Settings
from jobstream.runtime.postgres import connection_arguments, private_schema

log = logging.getLogger(__name__)

POOL_CONNECTIONS_MIN: Final = 2
POOL_CONNECTIONS_MAX: Final = 8  # a query takes under a millisecond; more would only queue inside Postgres
POOL_WAITING_MAX: Final = 2_000  # above what the API takes at once
POOL_TIMEOUT_S: Final = 2.0
RECONNECT_S: Final = 1.5  # then the next request tries: longer back-offs would outlast the outage
STATEMENT_TIMEOUT_MS: Final = 4_000
ANSWER_TIMEOUT_S: Final = 5.0  # above the statement's: for a server that does not answer at all

Rows = list[DictRow]


class Database:
    """Rows of one statement at a time. Raises Problem 503 where Postgres does not answer or is not migrated."""

    def __init__(self, settings: Settings) -> None:
        self._private = sql.Identifier(private_schema(settings))
        self._arguments = api_arguments(settings)
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[DictRow]] | None = None
        self._abandoned: set[asyncio.Task[Rows]] = set()

    async def start(self) -> None:
        """Begin to connect, and do not wait for it."""
        arguments = dict(self._arguments)
        self._pool = AsyncConnectionPool(
            arguments.pop("conninfo"),
            connection_class=psycopg.AsyncConnection[DictRow],
            kwargs=arguments | {"row_factory": dict_row},
            min_size=POOL_CONNECTIONS_MIN,
            max_size=POOL_CONNECTIONS_MAX,
            max_waiting=POOL_WAITING_MAX,
            timeout=POOL_TIMEOUT_S,
            reconnect_timeout=RECONNECT_S,
            open=False,
        )
        await self._pool.open(wait=False)

    async def stop(self) -> None:
        for task in self._abandoned:
            task.cancel()
        if self._pool is not None:
            await self._pool.close(timeout=1.0)

    async def listen_connection(self) -> psycopg.AsyncConnection[Any]:
        """A connection apart from the pool, for notifications; raises psycopg.Error."""
        return await psycopg.AsyncConnection.connect(**self._arguments)

    async def rows(self, query: LiteralString, parameters: Mapping[str, Any] | None = None) -> Rows:
        """The rows of a statement, which may be sent twice: it must read, or be idempotent."""
        return await self._bounded(self._read(query, parameters or {}))

    async def write(self, query: LiteralString, parameters: Mapping[str, Any]) -> Rows:
        """The rows that a statement that writes returns; sent once."""
        return await self._bounded(self._write(query, parameters))

    async def _bounded(self, work: Any) -> Rows:
        """Wait for a while. What takes longer is left to itself: cancelling waits for the server, which may be frozen."""
        task: asyncio.Task[Rows] = asyncio.ensure_future(work)
        done, _ = await asyncio.wait((task,), timeout=ANSWER_TIMEOUT_S)
        if not done:
            self._abandoned.add(task)
            task.add_done_callback(self._forget)
            raise Problem(503, "Postgres does not answer; try again")
        try:
            return task.result()
        except (PoolTimeout, TooManyRequests, psycopg.OperationalError) as error:
            log.warning("Postgres: %s", _first_line(error))
            raise Problem(503, "Postgres does not answer; try again") from None
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.InvalidSchemaName,
            psycopg.errors.UndefinedColumn,
        ) as error:
            log.warning("Postgres: %s", _first_line(error))
            raise Problem(503, "the database is not migrated; run `jobstream migrate`") from None

    def _forget(self, task: asyncio.Task[Rows]) -> None:
        self._abandoned.discard(task)
        with contextlib.suppress(asyncio.CancelledError, Exception):
            task.result()  # else asyncio complains that nobody has asked

    async def _read(self, query: LiteralString, parameters: Mapping[str, Any]) -> Rows:
        try:
            return await self._execute(query, parameters)
        except (PoolTimeout, TooManyRequests, psycopg.errors.QueryCanceled):
            raise
        except psycopg.OperationalError:
            await self._replace_broken()
            return await self._execute(query, parameters)

    async def _write(self, query: LiteralString, parameters: Mapping[str, Any]) -> Rows:
        try:
            return await self._execute(query, parameters)
        except psycopg.OperationalError:
            await self._replace_broken()  # so that sending it again succeeds
            raise

    async def _replace_broken(self) -> None:
        """After a restart of the server every connection is broken, and each would fail once."""
        assert self._pool is not None
        await self._pool.check()

    async def _execute(self, query: LiteralString, parameters: Mapping[str, Any]) -> Rows:
        assert self._pool is not None, "not started"
        text = sql.SQL(query).format(private=self._private) if "{private}" in query else query
        async with self._pool.connection() as connection:
            cursor = await connection.execute(text, parameters)
            return await cursor.fetchall()


def api_arguments(settings: Settings) -> dict[str, Any]:
    """As every connection of ours, and bounded: dead peers are found, and no statement runs for long."""
    arguments = connection_arguments(settings)
    return arguments | {
        "autocommit": True,
        "options": f"{arguments['options']} -c statement_timeout={STATEMENT_TIMEOUT_MS}",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
