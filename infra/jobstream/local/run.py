"""Start a stack, in the foreground or left running, and stop it."""

import asyncio
import contextlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from jobstream.local import java, kafka, process, stack, state
from jobstream.local.errors import LocalStackError, StackNotReady, StopTimedOut
from jobstream.local.paths import Layout, default_data
from jobstream.local.supervisor import Supervisor, tail

READY_WITHIN_S = 300.0  # 10 s is usual; more than the bounds of the children in a row, which say more when they are hit
STOP_WITHIN_S = 90.0  # more than the graces of agents, services and servers together
SUPERVISOR_LOG = "supervisor.log"

Ready = Callable[[state.State], None]
Progress = Callable[[str], None]


def _quiet(message: str) -> None:
    pass


def up(
    *,
    agents: int | None,
    data: Path | None = None,
    detach: bool,
    ready: Ready,
    progress: Progress = _quiet,
    until: int | None = None,
) -> None:
    """Run a stack: Kafka, PostgreSQL and, unless `agents` is None, the services with that many agents.

    `ready` is called with the description (the object of stack.json) once everything answers. With `detach` this returns
    then and the supervisor stays; otherwise it returns when the stack has been stopped by SIGTERM or SIGINT. `until` is a
    process: the stack stops by itself when that one has ended, however it ended.
    Raises LocalStackError, when nothing of the stack lives any more.
    """
    if sys.platform != "linux":
        raise LocalStackError("the local stack needs Linux; elsewhere, run it in containers: infra/compose.yaml")
    layout = Layout(data=(data or default_data()).absolute())
    jvm = java.resolve(progress)  # before the supervisor is detached: a download is shown, an error is raised here
    kafka.train(jvm, progress)
    layout.make()
    if detach:
        ready(_detached(layout, agents, until))
    else:
        _supervise(layout, jvm, agents, ready, until)


def down(data: Path | None = None) -> bool:
    """Stop the stack on a data folder and wait until it is gone; False when none runs there.

    Raises StopTimedOut when it lives on after 90 s.
    """
    layout = Layout(data=(data or default_data()).absolute())
    supervisor = state.supervisor_of(state.read(layout))
    if supervisor is None:
        return False
    if not supervisor.signal_and_wait(signal.SIGTERM, STOP_WITHIN_S):
        raise StopTimedOut(
            f"the supervisor of {layout.data} (process {supervisor.pid}) did not stop within {STOP_WITHIN_S:.0f} s: "
            f"see {layout.logs / SUPERVISOR_LOG}, or end it with `kill -9 {supervisor.pid}`, which takes its children with it"
        )
    return True


def status(data: Path | None = None) -> state.State | None:
    """The description of the stack on a data folder, None when none runs there."""
    current = state.read(Layout(data=(data or default_data()).absolute()))
    return current if state.supervisor_of(current) else None


def _supervise(layout: Layout, jvm: java.Java, agents: int | None, ready: Ready, until: int | None) -> None:
    """Be the supervisor, until a signal."""
    with state.owned(layout):
        layout.state.unlink(missing_ok=True)
        plan = stack.plan(layout, jvm, agents)
        told = False

        def changed(supervisor: Supervisor) -> None:
            nonlocal told
            description = stack.describe(plan, supervisor)
            state.write_private(layout.state, description)
            if supervisor.ready and not told:
                told = True
                ready(description)

        async def run() -> None:
            supervisor = Supervisor(stack.children(plan), layout.logs, changed)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.add_signal_handler(number, supervisor.stop)
            watch = asyncio.create_task(_stop_after(until, supervisor)) if until is not None else None
            await supervisor.run()
            if watch is not None:
                watch.cancel()

        try:
            asyncio.run(run())
        finally:
            layout.state.unlink(missing_ok=True)
            shutil.rmtree(layout.socket, ignore_errors=True)


async def _stop_after(pid: int, supervisor: Supervisor) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        await process.ended(pid)
    supervisor.stop()


def _detached(layout: Layout, agents: int | None, until: int | None) -> state.State:
    """Start a supervisor in a session of its own; its first line on a pipe is the description, or why there is none."""
    log = layout.logs / SUPERVISOR_LOG
    reading, writing = os.pipe()
    argv = [
        sys.executable,
        "-m",
        "jobstream.local",
        "supervise",
        "--data",
        str(layout.data),
        "--ready-fd",
        str(writing),
    ]
    if agents is not None:
        argv += ["--agents", str(agents)]
    if until is not None:
        argv += ["--until", str(until)]
    with log.open("wb") as file:
        supervisor = subprocess.Popen(
            argv,
            env=os.environ | {"PYTHONPATH": stack.python_path()},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=[writing],
        )
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            if not select.select([pipe], [], [], READY_WITHIN_S)[0]:
                raise StackNotReady(
                    f"the stack on {layout.data} was not ready within {READY_WITHIN_S:.0f} s: see {layout.logs}"
                )
            answer = pipe.readline()
        if not answer:
            raise StackNotReady(f"the supervisor ended early; the end of {log}:\n{tail(log)}")
        message: state.State = json.loads(answer)
        if "error" in message:
            raise LocalStackError(message["error"])
        return message
    except BaseException:  # a Ctrl-C too: the supervisor, in a session of its own, has not heard it
        supervisor.terminate()
        supervisor.wait()
        raise


def supervise(*, data: Path, agents: int | None, ready_fd: int, until: int | None) -> int:
    """The detached supervisor: tells the one who waits at the pipe, then runs on. Returns its exit status."""
    told = os.fdopen(ready_fd, "w")

    def tell(message: state.State) -> None:
        if not told.closed:
            try:
                told.write(json.dumps(message) + "\n")
                told.close()
            except BrokenPipeError:
                pass  # who started it did not wait

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        _supervise(Layout(data=data), java.resolve(), agents, tell, until)
        return 0
    except LocalStackError as error:
        sys.stderr.write(f"{error}\n")
        tell({"error": str(error)})
        return 1
