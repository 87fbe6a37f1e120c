"""`jobstream demo`: a stack in a temporary folder, a real workload on three agents, and nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from jobstream.cli import demo_workload
from jobstream.cli.connection import Endpoint
from jobstream.cli.demo_screen import Screen, summary
from jobstream.cli.exit_codes import INTERRUPTED
from jobstream.cli.local import asked
from jobstream.cli.output import duration
from jobstream.runtime.errors import JobstreamError

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
JOBS_USER: Final = "nobody"  # whom a root agent runs jobs as unless told otherwise
STARTED_WITHIN_S: Final = 5.0  # a supervisor that was just started has written its state by then
PROBE_WITHIN_S: Final = 20.0


def demo(*, agents: Annotated[int, Parameter(help="How many agents; default: 3.")] = 3) -> int:
    """Start a stack in a temporary folder, count the identifiers of Python's standard library with jobs, stop it all.

    One job lists the files, eight count, one merges; one fails and one is cancelled on purpose. The exit code is 0 only
    when each ended as it should, and the total equals a count without jobstream.
    """
    for number in ENDING:
        signal.signal(number, _interrupt)
    try:
        return _demo(agents)
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return INTERRUPTED


def _demo(agents: int) -> int:
    from jobstream.cli.client import Client
    from jobstream.cli.demo_driver import Driver

    began = time.monotonic()
    with Screen() as screen, _folder("jobstream-demo-work-") as work:
        python = _interpreter(screen)
        program = _open_to_jobs(work)
        with _stack(agents, screen) as stack:
            screen.say(f"the stack is ready: API {stack['api_url']}, Kafka {stack['kafka']}, {agents} agents")
            started = time.monotonic()
            with Client(Endpoint(url=stack["api_url"], key=stack["api_key"])) as client:
                driver = Driver(client, screen, python=python, program=program, folder=work)
                wrong = driver.run()
                jobs, most_frequent = driver.jobs(), driver.most_frequent()
            screen.say(f"the jobs took {duration(time.monotonic() - started)}; stopping the stack")
        screen.say("everything is stopped")
    print()
    summary(jobs)
    print(f"\nThe most frequent identifiers of Python's standard library:\n{most_frequent}")
    for sentence in wrong:
        print(f"NOT AS EXPECTED: {sentence}")
    if not wrong:
        print(f"Everything went as expected, in {duration(time.monotonic() - began)} from start to stop.")
    return 1 if wrong else 0


@contextmanager
def _stack(agents: int, screen: Screen) -> Iterator[dict[str, Any]]:
    """A stack that ends with this block, and by itself should this process be killed."""
    from jobstream.local import run

    described: dict[str, Any] = {}
    with _folder("jobstream-demo-") as data:
        data.chmod(0o711)  # root's jobs, which are another user's, can reach their working folders inside
        screen.say(f"starting Kafka, PostgreSQL, the services and {agents} agents")
        try:
            asked(
                lambda: run.up(
                    agents=agents,
                    data=data,
                    detach=True,
                    ready=described.update,
                    progress=screen.say,
                    until=os.getpid(),
                )
            )
            yield described
        except JobstreamError as error:
            raise JobstreamError(f"{error}{_troubles(data)}") from None
        finally:
            signal.signal(
                signal.SIGINT, signal.SIG_IGN
            )  # stopping is bounded; a second Ctrl-C would leave files behind
            _stop(data)


def _troubles(data: Path) -> str:
    """The end of the log of each process that did not just run on: the logs themselves are about to be removed."""
    from jobstream.local import run
    from jobstream.local.supervisor import tail

    children = (run.status(data) or {}).get("children", ())
    ends = [child for child in children if child["restarts"] or not child["ready"]]
    return "".join(
        f"\n{child['name']} was started {child['restarts'] + 1} times:\n{tail(Path(child['log']))}" for child in ends
    )


def _stop(data: Path) -> None:
    """Stop the stack, also one that was interrupted while it was starting and has not written its state yet."""
    from jobstream.local import run

    for number in ENDING:  # stopping is bounded; a second Ctrl-C would leave files behind
        signal.signal(number, signal.SIG_IGN)
    deadline = time.monotonic() + (STARTED_WITHIN_S if (data / "logs").exists() else 0)
    while not asked(lambda: run.down(data)) and time.monotonic() < deadline:
        time.sleep(0.1)


@contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _open_to_jobs(work: Path) -> Path:
    """Put the program into the jobs' folder; where they run as another user, that one may write there too."""
    program = work / "count_identifiers.py"
    shutil.copyfile(demo_workload.__file__, program)
    program.chmod(0o644)
    if os.geteuid() == 0:
        work.chmod(0o1777)
    return program


def _interpreter(screen: Screen) -> str:
    """A Python that jobs can start. Root's agents run jobs as another user, who cannot enter a virtual env in root's home."""
    if os.geteuid() != 0:
        return sys.executable
    user = os.environ.get("JOBSTREAM_RUN_AS", JOBS_USER)
    system = shutil.which("python3", path=SYSTEM_PATH)
    for python in filter(None, (sys.executable, system)):
        if _starts_as(user, python):
            return python
    os.environ["JOBSTREAM_RUN_AS"] = "root"
    screen.say(f"no Python here can be started by {user}: for this demo alone, jobs run as root")
    return sys.executable


def _starts_as(user: str, python: str) -> bool:
    needs = "import collections, json, keyword, sysconfig, tokenize"
    try:
        probe = subprocess.run(
            [python, "-I", "-c", needs],
            user=user,
            group=_group_of(user),
            extra_groups=[],
            cwd="/",
            env={"PATH": SYSTEM_PATH},
            capture_output=True,
            timeout=PROBE_WITHIN_S,
        )
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        return False
    return probe.returncode == 0


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
