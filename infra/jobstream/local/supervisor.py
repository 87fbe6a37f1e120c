"""Owns the processes of a stack: starts them in order, restarts what dies, stops them in reverse, leaves none behind.

One thread forks (see `process.spawn`); whatever blocks (preparing, ready checks) runs in worker threads.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from jobstream.local import process
from jobstream.local.errors import ChildFailed
from jobstream.local.process import Command

LOG_BYTES_MAX = 8 * 1024 * 1024  # of a child's log; when it is full, it becomes NAME.log.1 and starts again
LOG_CHECK_S = 5
TAIL_LINES = 30
READY_POLL_FIRST_S = 0.05
READY_POLL_MAX_S = 0.4  # checks cost the CPU that a start needs
BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 5.0
HEALTHY_AFTER_S = 30.0  # a child that lived this long starts with a clean record
FAILURES_MAX = 10  # in a row: about 30 s of trying, then it is not an accident


log = logging.getLogger(__name__)


class Restart(Enum):
    """What to do when a child ends."""

    ALWAYS = "always"
    ONCE = "once"  # a step: ready when it has ended with 0; anything else fails the stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process to own.

    `command` is called in a worker thread before each start (it prepares folders, and may block); `ready` likewise, until it
    is true. `after` names the children that must be ready first; they, and those of `outlived_by`, are stopped later.
    """

    name: str
    command: Callable[[], Command]
    ready: Callable[[], bool] = lambda: True
    ready_within_s: float = 60.0
    after: Sequence[str] = ()
    outlived_by: Sequence[str] = ()
    restart: Restart = Restart.ALWAYS
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0


@dataclass(slots=True)
class _Running:
    child: Child
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    restarts: int = -1


class Supervisor:
    """Runs children until it is told to stop.

    `changed` is called in the main thread whenever a child has been started or has become ready.
    """

    def __init__(self, children: Sequence[Child], logs: Path, changed: Callable[["Supervisor"], None]) -> None:
        self._running = {child.name: _Running(child, logs / f"{child.name}.log") for child in children}
        self._changed = changed
        self._stop = asyncio.Event()

    def children(self) -> list[dict[str, object]]:
        """Each child as the state file shows it."""
        return [
            {
                "name": name,
                "pid": running.process.pid if running.process else None,
                "ready": running.ready.is_set(),
                "restarts": max(running.restarts, 0),
                "log": str(running.log),
            }
            for name, running in self._running.items()
        ]

    @property
    def ready(self) -> bool:
        return all(running.ready.is_set() for running in self._running.values())

    def stop(self) -> None:
        """Make `run` stop the children and return."""
        self._stop.set()

    async def run(self) -> None:
        """Own the children until `stop`; raises ChildFailed when one cannot be kept. None lives when this returns."""
        keepers = [asyncio.create_task(self._keep(running)) for running in self._running.values()]
        stop = asyncio.create_task(self._stop.wait())
        trim = asyncio.create_task(self._trim_logs())
        try:
            pending: set[asyncio.Task[object]] = {*keepers, stop}
            while not stop.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (*keepers, stop, trim):
                task.cancel()
            await asyncio.gather(*keepers, stop, trim, return_exceptions=True)
            await self._stop_all()
            log.info("all children have ended")

    async def _keep(self, running: _Running) -> None:
        """Start a child when it is its turn, and again whenever it has ended."""
        child = running.child
        for name in child.after:
            await self._running[name].ready.wait()
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            await self._start(running)
            assert running.process is not None
            end = asyncio.create_task(process.ended(running.process.pid))
            try:
                reason = await self._until_ended(running, end, began)
            finally:
                end.cancel()
            running.ready.clear()
            if child.restart is Restart.ONCE and running.process.poll() == 0:
                self._became_ready(running, began)
                return
            if asyncio.get_running_loop().time() - began > HEALTHY_AFTER_S:
                failures = 0
            failures += 1
            if child.restart is Restart.ONCE or failures > FAILURES_MAX:
                raise ChildFailed(child.name, reason, running.log, tail(running.log))
            wait_s = min(BACKOFF_FIRST_S * 2 ** (failures - 1), BACKOFF_MAX_S)
            log.warning("%s %s; it is started again in %.1f s", child.name, reason, wait_s)
            await asyncio.sleep(wait_s)

    async def _start(self, running: _Running) -> None:
        try:
            command = await asyncio.to_thread(running.child.command)
            with running.log.open("ab") as output:
                running.process = process.spawn(command, output.fileno())
        except OSError as error:
            raise ChildFailed(
                running.child.name, f"cannot be started ({error})", running.log, tail(running.log)
            ) from error
        running.restarts += 1
        log.info("%s has been started as process %d", running.child.name, running.process.pid)
        self._changed(self)

    def _became_ready(self, running: _Running, began: float) -> None:
        log.info("%s is ready after %.1f s", running.child.name, asyncio.get_running_loop().time() - began)
        running.ready.set()
        self._changed(self)

    async def _until_ended(self, running: _Running, end: "asyncio.Task[None]", began: float) -> str:
        """Watch a child that has been started until it has ended; says how it did."""
        child, started = running.child, running.process
        assert started is not None
        loop = asyncio.get_running_loop()
        deadline = began + child.ready_within_s
        step = child.restart is Restart.ONCE
        wait_s = READY_POLL_FIRST_S
        while not end.done():
            if not step and await asyncio.to_thread(child.ready):
                self._became_ready(running, began)
                break
            if loop.time() > deadline:
                late = f"was not ready within {child.ready_within_s:.0f} s"
                if step or running.restarts == 0:
                    raise ChildFailed(child.name, late, running.log, tail(running.log))
                # A stack that has been up is not given up for one slow start.
                started.kill()
                await end
                started.wait()
                return late
            await asyncio.wait([end], timeout=wait_s)
            wait_s = min(wait_s * 1.3, READY_POLL_MAX_S)
        await end
        code = started.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    async def _stop_all(self) -> None:
        """Stop the children, each after those that were started after it."""
        left = {name for name, running in self._running.items() if running.process is not None}
        while left:
            needed = {name for other in left for name in self._needed(other)}
            last = left - needed
            assert last, f"children that outlive each other: {sorted(left)}"
            await asyncio.gather(*(self._stop_one(self._running[name]) for name in last))
            left.difference_update(last)

    def _needed(self, name: str) -> set[str]:
        """Whom a child needs until its end."""
        child = self._running[name].child
        return {*child.after, *child.outlived_by}

    async def _stop_one(self, running: _Running) -> None:
        started = running.process
        assert started is not None
        if started.poll() is None:
            began = asyncio.get_running_loop().time()
            started.send_signal(running.child.stop_signal)
            try:
                await asyncio.wait_for(process.ended(started.pid), running.child.stop_grace_s)
            except TimeoutError:
                log.warning("%s has not ended in %.0f s: killed", running.child.name, running.child.stop_grace_s)
                started.kill()
            started.wait()
            log.info("%s has ended after %.1f s", running.child.name, asyncio.get_running_loop().time() - began)

    async def _trim_logs(self) -> None:
        """Keep the logs bounded while children write to them: copy, then cut (they append, so they go on at the start)."""
        while True:
            for running in self._running.values():
                with contextlib.suppress(OSError):  # not there yet; or no space left, which is not cured by ending
                    if running.log.stat().st_size > LOG_BYTES_MAX:
                        await asyncio.to_thread(_rotate, running.log)
            await asyncio.sleep(LOG_CHECK_S)


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The end of a log file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def _rotate(path: Path) -> None:
    previous = path.with_name(f"{path.name}.1")
    with path.open("rb") as file, previous.open("wb") as copy:
        file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        while block := file.read(1024 * 1024):
            copy.write(block)
    os.truncate(path, 0)
