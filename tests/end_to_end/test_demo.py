"""The whole demo, as `make demo` runs it: it ends well, shows what it promises, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

DEMO = (sys.executable, "-m", "jobstream.cli", "demo")
WITHIN_S = 240.0  # with nothing downloaded before

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder() -> str:
    """A short path for temporary files that the demo's jobs can reach, whoever runs them."""
    made = tempfile.mkdtemp(prefix="jd-", dir="/tmp")
    Path(made).chmod(0o711)
    return made


def environment(folder: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBSTREAM_")}
    return {**clean, "TMPDIR": folder}


def remains(folder: str) -> list[str]:
    """Processes that name the demo's folder in their command, environment or working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values(), process.cwd()]
        except (psutil.Error, FileNotFoundError):
            continue
        if process.pid != os.getpid() and any(folder in word for word in words):
            found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def test_the_demo_does_what_it_says_and_leaves_nothing_behind(folder: str) -> None:
    done = subprocess.run(DEMO, env=environment(folder), capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    table = [line.split() for line in done.stdout.splitlines()]
    rows = {" ".join(cells[:3]): cells for cells in table if len(cells) > 5}
    for number in range(1, 9):
        assert "completed" in rows[f"count part {number}"]
    assert "failed" in rows["fails on purpose"]
    assert "cancelled" in next(cells for cells in reversed(table) if cells[:2] == ["is", "cancelled"])
    frequent = done.stdout.split("most frequent identifiers")[1]
    assert "self" in frequent.split()
    assert len([line for line in frequent.splitlines() if line[:8].strip().isdigit()]) == 20
    assert "Everything went as expected" in done.stdout
    assert remains(folder) == []
    assert list(Path(folder).iterdir()) == []
    Path(folder).rmdir()


@pytest.mark.parametrize("after", ["starting Kafka", "list and split: running"])
def test_a_demo_that_is_interrupted_leaves_nothing_behind(folder: str, after: str) -> None:
    demo = subprocess.Popen(DEMO, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    while after not in (line := demo.stdout.readline()):
        assert line, "the demo ended before"
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=WITHIN_S)
    assert demo.returncode == 130
    assert errors == "interrupted; nothing is left running\n"
    assert remains(folder) == []
    assert list(Path(folder).iterdir()) == []
    Path(folder).rmdir()
