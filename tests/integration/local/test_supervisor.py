"""The supervisor's promises, with processes that cost nothing."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobstream.local import supervisor as module
from jobstream.local.errors import ChildFailed
from jobstream.local.process import Command, ProcessId
from jobstream.local.supervisor import Child, Restart, Supervisor

WITHIN_S = 20.0  # milliseconds on an idle machine


def shell(tmp_path: Path, script: str) -> Callable[[], Command]:
    return lambda: Command(argv=["/bin/sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)


def lives_until_told(tmp_path: Path, name: str) -> Callable[[], Command]:
    """A process that writes when it starts and when it is stopped."""
    script = f"trap 'echo -{name} >> order; exit 0' TERM; echo +{name} >> order; while :; do sleep 60 & wait $!; done"
    return shell(tmp_path, script)


def started(tmp_path: Path, name: str) -> Callable[[], bool]:
    return lambda: f"+{name}\n" in (tmp_path / "order").read_text() if (tmp_path / "order").exists() else False


async def run(children: list[Child], logs: Path, script: Callable[[Supervisor, asyncio.Condition], Any]) -> None:
    """Supervise until `script` has ended; it is told of each change through the condition."""
    changes = asyncio.Condition()

    async def tell() -> None:
        async with changes:
            changes.notify_all()

    tellers: set[asyncio.Task[None]] = set()
    supervisor = Supervisor(children, logs, lambda _: tellers.add(asyncio.create_task(tell())))

    async def play() -> None:
        try:
            async with changes:
                await script(supervisor, changes)
        finally:
            supervisor.stop()

    await asyncio.wait_for(asyncio.gather(supervisor.run(), play()), WITHIN_S)


def state_of(supervisor: Supervisor, name: str) -> dict[str, Any]:
    return next(child for child in supervisor.children() if child["name"] == name)


def test_starts_in_order_and_stops_in_reverse(tmp_path: Path) -> None:
    children = [
        Child(name=name, command=lives_until_told(tmp_path, name), ready=started(tmp_path, name), after=after)
        for name, after in (("service", ["database"]), ("database", []), ("agent", ["service"]))
    ]

    async def until_ready(supervisor: Supervisor, changes: asyncio.Condition) -> None:
        await changes.wait_for(lambda: supervisor.ready)

    asyncio.run(run(children, tmp_path, until_ready))
    order = (tmp_path / "order").read_text().split()
    assert order == ["+database", "+service", "+agent", "-agent", "-service", "-database"]


def test_child_that_needs_others_to_the_end_need_not_wait_for_them_at_the_start(tmp_path: Path) -> None:
    starts_first = lambda: started(tmp_path, "agent")() and started(tmp_path, "service")()  # noqa: E731
    children = [
        Child(name="service", command=lives_until_told(tmp_path, "service"), ready=starts_first),
        Child(
            name="agent",
            command=lives_until_told(tmp_path, "agent"),
            ready=started(tmp_path, "agent"),
            outlived_by=["service"],
        ),
    ]

    async def until_ready(supervisor: Supervisor, changes: asyncio.Condition) -> None:
        await changes.wait_for(lambda: supervisor.ready)

    asyncio.run(run(children, tmp_path, until_ready))
    assert (tmp_path / "order").read_text().split()[2:] == ["-agent", "-service"]


def test_child_that_dies_is_started_again(tmp_path: Path) -> None:
    children = [Child(name="server", command=lives_until_told(tmp_path, "server"))]

    async def kill_each_time(supervisor: Supervisor, changes: asyncio.Condition) -> None:
        for restarts in range(3):
            await changes.wait_for(partial(came_back, supervisor, restarts))
            os.kill(state_of(supervisor, "server")["pid"], signal.SIGKILL)

    def came_back(supervisor: Supervisor, restarts: int) -> bool:
        return supervisor.ready and state_of(supervisor, "server")["restarts"] == restarts

    asyncio.run(run(children, tmp_path, kill_each_time))


def test_child_that_keeps_dying_ends_the_stack_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr(module, "FAILURES_MAX", 3)
    other = Child(name="other", command=lives_until_told(tmp_path, "other"), ready=started(tmp_path, "other"))
    script = "echo try; echo no disk >&2; exit 7"
    broken = Child(name="broken", command=shell(tmp_path, script), ready=lambda: False, after=["other"])
    with pytest.raises(ChildFailed, match=r"(?s)broken ended with status 7.*no disk") as failure:
        asyncio.run(Supervisor([other, broken], tmp_path, lambda _: None).run())
    assert failure.value.log.read_text().count("try") == 4  # the first and three restarts
    assert (tmp_path / "order").read_text().split() == ["+other", "-other"]


def test_step_runs_once_and_its_failure_ends_the_stack(tmp_path: Path) -> None:
    step = Child(name="step", command=shell(tmp_path, "echo ran >> steps"), restart=Restart.ONCE)
    failing = Child(name="failing", command=shell(tmp_path, "exit 3"), after=["step"], restart=Restart.ONCE)
    never = Child(name="never", command=shell(tmp_path, "touch never"), after=["failing"])
    with pytest.raises(ChildFailed, match="failing ended with status 3"):
        asyncio.run(Supervisor([step, failing, never], tmp_path, lambda _: None).run())
    assert (tmp_path / "steps").read_text() == "ran\n"
    assert not (tmp_path / "never").exists()


def test_child_that_is_never_ready_ends_the_stack(tmp_path: Path) -> None:
    mute = Child(name="mute", command=shell(tmp_path, "exec sleep 60"), ready=lambda: False, ready_within_s=0.2)
    with pytest.raises(ChildFailed, match="mute was not ready within"):
        asyncio.run(Supervisor([mute], tmp_path, lambda _: None).run())


def test_child_that_ignores_the_signal_is_killed_after_its_grace(tmp_path: Path) -> None:
    deaf = Child(
        name="deaf",
        command=shell(tmp_path, "trap '' TERM; touch deaf; while :; do sleep 60 & wait $!; done"),
        ready=lambda: (tmp_path / "deaf").exists(),
        stop_grace_s=0.1,
    )
    pids: list[int] = []

    async def until_ready(supervisor: Supervisor, changes: asyncio.Condition) -> None:
        await changes.wait_for(lambda: supervisor.ready)
        pids.append(state_of(supervisor, "deaf")["pid"])

    asyncio.run(run([deaf], tmp_path, until_ready))
    assert ProcessId.of(pids[0]) is None


def test_full_log_is_turned_over_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 1000)
    monkeypatch.setattr(module, "LOG_CHECK_S", 0.01)
    writer = (
        "for n in range(20_000): print(n, flush=True)\n"
        "import pathlib, time; pathlib.Path('written').touch(); time.sleep(60)"
    )
    chatty = Child(
        name="chatty",
        command=lambda: Command(argv=[sys.executable, "-c", writer], env={}, cwd=tmp_path),
        ready=lambda: (tmp_path / "written").exists() and (tmp_path / "chatty.log").stat().st_size <= 1000,
    )

    async def until_ready(supervisor: Supervisor, changes: asyncio.Condition) -> None:
        await changes.wait_for(lambda: supervisor.ready)

    asyncio.run(run([chatty], tmp_path, until_ready))
    assert (tmp_path / "chatty.log.1").stat().st_size >= 1
    assert (tmp_path / "chatty.log").stat().st_size + (tmp_path / "chatty.log.1").stat().st_size < 100_000
