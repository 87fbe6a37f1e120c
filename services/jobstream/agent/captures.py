"""Reads what attempts write and brings it to the log store, without ever letting store or job hold up the loop.

While the store works, a job that writes faster waits in its pipe as it would for any reader. When the store does not
answer, output beyond a bounded buffer is dropped with a marker and the job goes on.
"""

import logging
import os
import selectors
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from jobstream.agent.output import Output
from jobstream.agent.wakeup import Wakeup
from jobstream.runtime.clock import boottime_ms
from jobstream.runtime.log_store import AttemptLog, LogEnd, LogStore

log = logging.getLogger(__name__)

READ_BYTES: Final = 64 * 1024  # a pipe's usual capacity; one read a turn and attempt, so that none holds up others
WRITERS: Final = 8  # chunks written at once: 80 a second at 100 ms each; one thread each while there is work
STALL_MS: Final = 3_000  # a write that takes longer counts as no answer
RETRY_FIRST_MS: Final = 200
RETRY_MS_MAX: Final = 10_000
ENDED_MAX: Final = 64  # ended attempts whose output waits for the store: 64 MiB at most; then the oldest are given up

Finished = Callable[[], None]


@dataclass(slots=True, kw_only=True)
class Capture:
    """`reading`: the pipe is watched. `writing`: since when a write is under way. `done` is called once all is stored.

    `again` is a write that failed: the same again, so that chunks stay dense and in order.
    """

    log: AttemptLog
    descriptor: int | None
    output: Output
    reading: bool = False
    writing: int | None = None
    retry_at: int = 0
    failures: int = 0
    again: Callable[[], None] | None = None
    done: Finished | None = None
    ended: bool = False
    end_written: bool = False


class Captures:
    """The captures of all attempts. All methods belong to the loop's thread; writes run in others."""

    def __init__(self, store: LogStore, *, bytes_max: int, selector: selectors.BaseSelector, wakeup: Wakeup) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._selector = selector
        self._wakeup = wakeup
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="log-store")
        self._captures: dict[int, Capture] = {}  # by token

    def __len__(self) -> int:
        return len(self._captures)

    def open(self, attempt: AttemptLog, descriptor: int) -> None:
        """Capture what comes out of a pipe, which is owned from here on."""
        os.set_blocking(descriptor, False)
        capture = Capture(log=attempt, descriptor=descriptor, output=Output(self._bytes_max))
        self._captures[attempt.token] = capture
        self._watch(capture)

    def finish(self, token: int, done: Finished) -> None:
        """Nothing of the attempt lives: take what is still in the pipe, and call `done` when all of it is stored."""
        capture = self._captures[token]
        capture.done = done
        capture.ended = True
        self._advance(capture, boottime_ms())
        waiting = [one for one in self._captures.values() if one.ended]
        if len(waiting) > ENDED_MAX:
            self._give_up(waiting[0])

    def turn(self, now: int) -> None:
        """Start the writes that are due."""
        for capture in list(self._captures.values()):
            self._advance(capture, now)

    def wake_at(self) -> int | None:
        """When `turn` has something to do next."""
        times = []
        for capture in self._captures.values():
            if capture.writing is not None:
                if not capture.reading and capture.descriptor is not None:
                    times.append(capture.writing + STALL_MS)
            elif capture.ended or capture.again is not None:
                times.append(capture.retry_at)
            elif (due := capture.output.due_at()) is not None:
                times.append(max(due, capture.retry_at))
        return min(times, default=None)

    def close(self) -> None:
        """Give up what is not stored yet."""
        for capture in list(self._captures.values()):
            self._give_up(capture)
        self._writers.shutdown(wait=False, cancel_futures=True)

    # ---- one capture

    def _watch(self, capture: Capture) -> None:
        assert capture.descriptor is not None
        capture.reading = True
        self._selector.register(capture.descriptor, selectors.EVENT_READ, lambda: self._readable(capture))

    def _unwatch(self, capture: Capture) -> None:
        if capture.reading and capture.descriptor is not None:
            capture.reading = False
            self._selector.unregister(capture.descriptor)

    def _readable(self, capture: Capture) -> None:
        now = boottime_ms()
        if capture.output.full and not self._stalled(capture, now):
            self._unwatch(capture)  # until the chunk under way is stored
            return
        self._read(capture, now)
        if capture.output.due_at() == 0:
            self._advance(capture, now)

    def _read(self, capture: Capture, now: int) -> bool:
        """Read once; whether there may be more."""
        if capture.descriptor is None:
            return False
        try:
            data = os.read(capture.descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("the output of %s cannot be read: %s", capture.log.folder, error)
            data = b""
        if not data:
            self._close_pipe(capture)
            capture.output.finish(now)
            return False
        if capture.output.full:
            capture.output.lose(len(data))
        else:
            capture.output.feed(data, now)
        return True

    def _close_pipe(self, capture: Capture) -> None:
        self._unwatch(capture)
        if capture.descriptor is not None:
            os.close(capture.descriptor)
            capture.descriptor = None

    def _stalled(self, capture: Capture, now: int) -> bool:
        return capture.failures > 0 or (capture.writing is not None and now - capture.writing > STALL_MS)

    def _advance(self, capture: Capture, now: int) -> None:
        """Read what is left where the attempt has ended; write the next chunk, or the end, where it is time."""
        if capture.ended and capture.descriptor is not None:
            self._unwatch(capture)
            while not capture.output.full or self._stalled(capture, now):
                if not self._read(capture, now):  # nothing that could write more lives
                    self._close_pipe(capture)
                    capture.output.finish(now)
                    break
        elif capture.descriptor is not None and not capture.reading and self._stalled(capture, now):
            self._watch(capture)
        if capture.writing is not None or now < capture.retry_at:
            return
        due = capture.output.due_at()
        if (again := capture.again) is not None:
            capture.again = None
            self._start(capture, now, again)
        elif due is not None and (capture.ended or now >= due):
            self._write(capture, now)
        elif capture.ended and capture.descriptor is None and due is None:
            self._write_end(capture, now)

    def _write(self, capture: Capture, now: int) -> None:
        chunk = capture.output.take()
        number = capture.output.chunks - 1
        self._start(capture, now, lambda: self._store.write_chunk(capture.log, number, chunk))

    def _write_end(self, capture: Capture, now: int) -> None:
        output = capture.output
        end = LogEnd(bytes=output.stored, cut=output.cut, chunks=output.chunks)
        capture.end_written = True
        self._start(capture, now, lambda: self._store.write_end(capture.log, end))

    def _start(self, capture: Capture, now: int, write: Callable[[], None]) -> None:
        capture.writing = now

        def work() -> None:
            try:
                write()
            except Exception as error:  # Unavailable; of any other, too, the loop must hear
                failure = error
                self._wakeup.post(lambda: self._failed(capture, write, failure))
            else:
                self._wakeup.post(lambda: self._written(capture))

        self._writers.submit(work)

    def _written(self, capture: Capture) -> None:
        if capture.log.token not in self._captures:
            return  # given up meanwhile
        capture.writing = None
        capture.failures = 0
        if capture.end_written:
            self._captures.pop(capture.log.token, None)
            if capture.done is not None:
                capture.done()
            return
        if capture.descriptor is not None and not capture.reading and not capture.ended:
            self._watch(capture)
        self._advance(capture, boottime_ms())

    def _failed(self, capture: Capture, write: Callable[[], None], error: Exception) -> None:
        if capture.failures == 0:
            log.warning("the output of %s waits for the log store: %s", capture.log.folder, error)
        wait_ms = min(RETRY_FIRST_MS << min(capture.failures, 10), RETRY_MS_MAX)
        capture.failures += 1
        capture.retry_at = boottime_ms() + wait_ms
        capture.writing = None
        capture.again = write

    def _give_up(self, capture: Capture) -> None:
        log.error("output of %s is given up: the log store does not take it", capture.log.folder)
        self._close_pipe(capture)
        self._captures.pop(capture.log.token, None)
        if capture.done is not None:
            capture.done()
