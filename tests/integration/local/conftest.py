"""Stacks of the tests' own, which may be killed."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobstream.local import run, state
from jobstream.local.paths import Layout
from jobstream.local.process import ProcessId


class OwnStack:
    """A data folder and what runs on it."""

    def __init__(self, data: Path) -> None:
        self.layout = Layout(data=data)
        self.data = data

    def up(self) -> state.State:
        """Start the servers; they end with this process at the latest."""
        run.up(agents=None, data=self.data, detach=True, ready=lambda _: None, until=os.getpid())
        return self.state()

    def state(self) -> state.State:
        found = run.status(self.data)
        assert found is not None, f"no stack runs on {self.data}"
        return found

    def child(self, name: str) -> dict[str, object]:
        """What the state file says of a child."""
        return next(child for child in self.state()["children"] if child["name"] == name)

    def kill(self, name: str) -> None:
        """`kill -9` of a child, which is ready."""
        pid = self.child(name)["pid"]
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[ProcessId]:
        """The supervisor, its children and theirs."""
        supervisor = state.supervisor_of(self.state())
        assert supervisor is not None
        family = psutil.Process(supervisor.pid).children(recursive=True)
        return [supervisor, *filter(None, (ProcessId.of(process.pid) for process in family))]


@pytest.fixture(scope="module")
def own_stack() -> Iterator[OwnStack]:
    """A running stack that a module's tests share and may damage, as long as it heals."""
    with _folder() as own:
        own.up()
        yield own


@pytest.fixture
def own_data() -> Iterator[OwnStack]:
    """A folder for a stack that has not been started."""
    with _folder() as own:
        yield own


class _folder:
    def __enter__(self) -> OwnStack:
        # As closed as can be: the data folder lies below one that only this user may enter.
        self._own = OwnStack(Path(tempfile.mkdtemp(prefix="jobstream-own-")) / "data")
        return self._own

    def __exit__(self, *error: object) -> None:
        run.down(self._own.data)
        shutil.rmtree(self._own.data.parent)
