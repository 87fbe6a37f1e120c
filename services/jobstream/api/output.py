"""Following the output of one attempt: chunk by chunk, as text, until its end."""

import asyncio
import codecs
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from jobstream.api.problems import Problem
from jobstream.runtime.errors import Unavailable
from jobstream.runtime.log_store import AttemptLog, LogStore

POLL_FIRST_S: Final = 0.1  # an object store cannot notify; a quiet job is asked for less and less often
POLL_MOST_S: Final = 1.0
STATE_EVERY_S: Final = 1.0
AFTER_END_S: Final = 5.0  # an attempt that was lost with its machine writes no end; what it wrote may be a little late


class StreamBroken(Exception):
    """The answer cannot be finished. The connection is broken off, so that nobody takes a part for the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the projection says: whose output is next (None: no attempt yet), and whether more may come."""

    log: AttemptLog | None
    ended: bool


Look = Callable[[], Awaitable[State]]


class Output:
    """The text of one attempt. Bytes that are no UTF-8 become replacement characters; memory holds one chunk."""

    def __init__(self, store: LogStore, stopping: asyncio.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._next = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def probe(self, log: AttemptLog) -> None:
        """Raises Unavailable while that can still be answered with a status."""
        await self._store.read_end_async(log)

    async def whole(self, log: AttemptLog) -> AsyncIterator[bytes]:
        """What is there now."""
        async for text in self._fresh(log):
            yield text
        yield self._rest()

    async def follow(self, look: Look, state: State) -> AsyncIterator[bytes]:
        """Everything, until the log's end marker, or until the attempt has ended for a while without one.

        Raises StreamBroken when this process stops, Unavailable where the store does not answer.
        """
        pause_s, looked, ended_at = POLL_FIRST_S, time.monotonic(), None
        while True:
            found = False
            if state.log is not None:
                end = await self._store.read_end_async(state.log)  # before the chunks: then all of them are there
                async for text in self._fresh(state.log):
                    found = True
                    yield text
                if end is not None:
                    break
            if state.ended:
                ended_at = ended_at or time.monotonic()
                if state.log is None or time.monotonic() - ended_at >= AFTER_END_S:
                    break
            pause_s = POLL_FIRST_S if found else min(pause_s * 1.5, POLL_MOST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
                    raise StreamBroken("the API stops")
            if not state.ended and time.monotonic() - looked >= STATE_EVERY_S:
                looked = time.monotonic()
                with contextlib.suppress(Problem):  # Postgres is away: the log store goes on without it
                    state = await look()
        yield self._rest()

    async def _fresh(self, log: AttemptLog) -> AsyncIterator[bytes]:
        while (chunk := await self._store.read_chunk_async(log, self._next)) is not None:
            self._next += 1
            if text := self._decoder.decode(chunk):
                yield text.encode()

    def _rest(self) -> bytes:
        """For the part of a character that is left at the very end."""
        return self._decoder.decode(b"", final=True).encode()


async def unbroken(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream whose beginning has been sent: what fails now breaks it off."""
    try:
        async for part in parts:
            yield part
    except Unavailable as error:
        raise StreamBroken(str(error)) from error
