"""Where the tests' Kafka and PostgreSQL come from. Each provider works across processes: xdist's workers share one stack."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Addresses: `kafka` is bootstrap servers, `postgres` a libpq URL; `state` the stack.json of an embedded one."""

    kafka: str
    postgres: str
    state: Path | None = None


class Provider(Protocol):
    def start(self) -> Stack:
        """The stack, started by the first who asks."""

    def stop(self) -> None:
        """Stop what was started; called once, by the process that began the run."""


def provider_of(kind: str, folder: Path) -> Provider:
    """The provider for `--stack KIND`; `folder` is the run's own."""
    running = os.environ.get("JOBSTREAM_TEST_STACK")
    if running:
        return Running(Path(running))
    return Containers(folder) if kind == "containers" else Embedded(folder)


def containers_unavailable() -> str | None:
    """Why containers cannot be used, or None."""
    if os.environ.get("JOBSTREAM_TEST_STACK"):
        return None
    try:
        from testcontainers.core.docker_client import DockerClient

        DockerClient().client.ping()
    except Exception as error:  # the client raises errors of many libraries
        return f"--stack containers: no Docker engine answers ({error})"
    return None


class Running:
    """A stack that somebody runs already; it is left running."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def start(self) -> Stack:
        described = json.loads(self._state.read_text())
        return Stack(kafka=described["kafka"], postgres=described["postgres"], state=self._state)

    def stop(self) -> None:
        pass


class Embedded:
    """The local stack's servers, on a data folder of the run's own; they end with the run even if it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"

    def start(self) -> Stack:
        from jobstream.local import run

        state = self._data / "stack.json"
        with locked(self._folder):
            if run.status(self._data) is None:
                owner = _controller()
                run.up(agents=None, data=self._data, detach=True, ready=lambda described: None, until=owner)
        return Running(state).start()

    def stop(self) -> None:
        from jobstream.local import run

        run.down(self._data)


class Containers:
    """Kafka and PostgreSQL 18 through testcontainers, whose reaper removes them when the run has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> Stack:
        from tests.stack import containers

        described = self._folder / "stack.json"
        with locked(self._folder):
            if not described.exists():
                described.write_text(json.dumps(containers.start()))
        return Running(described).start()

    def stop(self) -> None:
        from tests.stack import containers

        described = self._folder / "stack.json"
        if described.exists():
            containers.stop(json.loads(described.read_text()))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _controller() -> int:
    """The process that began the run: this one, or the parent of an xdist worker."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
