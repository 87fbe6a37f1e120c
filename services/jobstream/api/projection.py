"""Waiting until the projection shows something, so that a client reads its own write.

The projector notifies after each batch; then one statement asks for everybody who waits. A notification that is missed
costs a quarter of a second, since those who wait are asked for that often anyway.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from jobstream.api import queries
from jobstream.api.database import Database
from jobstream.api.problems import Problem
from jobstream.api.views import Row
from jobstream.runtime.config import Settings

log = logging.getLogger(__name__)

SLOW_POLL_S: Final = 0.25
RECONNECT_FIRST_S: Final = 0.2
RECONNECT_MOST_S: Final = 5.0
POSITION_WAIT_S: Final = 2.0

Answered = Callable[
    [Row | None, Row | None], bool
]  # the job's row and the command's refusal, as one snapshot shows them
Sighting = tuple[Row | None, Row | None]


def channel(schema: str) -> str:
    """Where the projector notifies after each batch."""
    return f"{schema}_projected"


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """One who waits: for the answer to a command, or for a position."""

    tenant: str = ""
    job_id: str = ""
    answered: Answered | None = None
    position: tuple[int, int] = (0, 0)
    seen: asyncio.Future[Sighting] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def within(self, seconds: float) -> Sighting | None:
        """What the projection showed; None when the time is over."""
        try:
            async with asyncio.timeout(seconds):
                return await self.seen
        except TimeoutError:
            return None


class Projection:
    """Who waits for what. Works, slower, without notifications; without Postgres everybody waits in vain."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._channel = channel(settings.postgres_schema)
        self._database = database
        self._commands: dict[str, _Waiting] = {}
        self._positions: dict[int, _Waiting] = {}
        self._someone = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._answer())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=1.0)

    @contextmanager
    def watch(self, tenant: str, job_id: str, command_id: str, answered: Answered) -> Iterator[_Waiting]:
        """Begin to watch before the command is sent: its answer may be there before its acknowledgement."""
        waiting = _Waiting(tenant=tenant, job_id=job_id, answered=answered)
        self._commands[command_id] = waiting
        self._someone.set()
        try:
            yield waiting
        finally:
            del self._commands[command_id]

    async def reached(self, position: tuple[int, int]) -> None:
        """Wait until the projection holds `lifecycle` up to (partition, next offset); raises Problem 503 after a while."""
        waiting = _Waiting(position=position)
        self._positions[id(waiting)] = waiting
        self._someone.set()
        self._changed.set()  # it may be there already
        try:
            if await waiting.within(POSITION_WAIT_S) is None:
                raise Problem(
                    503,
                    f"the projection has not reached the Jobstream-Position {position[0]}:{position[1]} within "
                    f"{POSITION_WAIT_S:g} s; try again, or ask without the header for what is there",
                )
        finally:
            del self._positions[id(waiting)]

    async def _listen(self) -> None:
        """Turn notifications into wake-ups, for ever."""
        pause_s = RECONNECT_FIRST_S
        while True:
            try:
                async with await self._database.listen_connection() as connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    pause_s = RECONNECT_FIRST_S
                    self._changed.set()  # for what was notified while nobody listened
                    async for _ in connection.notifies():
                        self._changed.set()
            except (psycopg.Error, OSError) as error:
                log.warning("no notifications from Postgres: %s", str(error).strip().partition("\n")[0])
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_MOST_S)

    async def _answer(self) -> None:
        """Ask the projection for all who wait whenever it has changed, for ever."""
        while True:
            await self._someone.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLOW_POLL_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._ask()
            except Problem as problem:
                log.warning("the projection cannot be read: %s", problem.detail)
                await asyncio.sleep(SLOW_POLL_S)
            except Exception:
                log.exception("the projection cannot be read")  # and those who wait get their time-out
                await asyncio.sleep(SLOW_POLL_S)
            if not self._commands and not self._positions:
                self._someone.clear()

    async def _ask(self) -> None:
        if commands := {name: waiting for name, waiting in self._commands.items() if not waiting.seen.done()}:
            rows = await self._database.rows(
                queries.ANSWERS,
                {
                    "command_ids": list(commands),
                    "tenants": [waiting.tenant for waiting in commands.values()],
                    "job_ids": [waiting.job_id for waiting in commands.values()],
                },
            )
            for row in rows:
                self._tell(commands[row["command_id"]], row)
        if positions := [waiting for waiting in self._positions.values() if not waiting.seen.done()]:
            partitions = sorted({waiting.position[0] for waiting in positions})
            offsets = await self._database.rows(queries.POSITIONS, {"partitions": partitions})
            reached: dict[Any, int] = {row["partition"]: row["next_offset"] for row in offsets}
            for waiting in positions:
                partition, offset = waiting.position
                if reached.get(partition, 0) >= offset and not waiting.seen.done():
                    waiting.seen.set_result((None, None))

    @staticmethod
    def _tell(waiting: _Waiting, row: Row) -> None:
        assert waiting.answered is not None
        job = row if row["job_id"] is not None else None
        code = row["refusal_code"]
        refusal = None if code is None else {"code": code, "detail": row["refusal_detail"]}
        if not waiting.seen.done() and waiting.answered(job, refusal):
            waiting.seen.set_result((job, refusal))
