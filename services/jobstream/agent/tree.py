"""All processes of one attempt: to signal them, to kill them, and to see that none is left.

A cgroup (version 2) where one can be made: nothing leaves it. Else by descent below the guardian, which is the
subreaper of all; there a process that left its session, its parents and its environment belongs to every attempt,
and ends with the first: one that outlives its lease would be worse.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

KILL_FILE: Final = "cgroup.kill"  # Linux 5.14
STOP_PASSES_MAX: Final = 20  # a tree that forks faster than it is stopped is met again some ms later
REMOVE_TRIES: Final = 50  # a cgroup that has just been emptied can be busy for some ms
REMOVE_WAIT_S: Final = 0.01
TOKEN_VARIABLE: Final = "JOBSTREAM_FENCING_TOKEN"  # noqa: S105 (no secret)


class Tree(Protocol):
    """The processes of one attempt."""

    def members(self) -> list[int]:
        """Ids of those that live, as seen from here; zombies may be among them."""

    def kill(self) -> None:
        """SIGKILL to all. Ask `empty` later: processes end when the kernel gets to them."""

    def empty(self) -> bool: ...

    def remove(self) -> None:
        """Give back what the kernel holds for it; once empty."""


def terminate(tree: Tree) -> None:
    """SIGTERM to each process."""
    send_signal(tree.members, signal.SIGTERM)


def send_signal(members: Callable[[], list[int]], number: signal.Signals) -> None:
    """Send to each member, held by pidfd and asked for again, so that a reused id is never hit."""
    held: dict[int, int] = {}
    try:
        for pid in members():
            with contextlib.suppress(ProcessLookupError):
                held[pid] = os.pidfd_open(pid)
        still = set(members())
        for pid, descriptor in held.items():
            if pid in still:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
    finally:
        for descriptor in held.values():
            os.close(descriptor)


class Cgroup:
    """A cgroup of version 2, made here."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path

    @property
    def procs_file(self) -> Path:
        return self.path / "cgroup.procs"

    def members(self) -> list[int]:
        return [int(pid) for pid in self.procs_file.read_text().split()]

    def kill(self) -> None:
        (self.path / KILL_FILE).write_text("1")

    def empty(self) -> bool:
        try:
            return "populated 0" in (self.path / "cgroup.events").read_text()
        except FileNotFoundError:  # only an empty one can be removed
            return True

    def remove(self) -> None:
        self.path.rmdir()


def cgroup_home(name: str) -> Path | None:
    """A cgroup for attempts' cgroups below our own, emptied of what a former guardian left; None where impossible."""
    own = _own_cgroup()
    if own is None:
        return None
    home = own / name
    try:
        home.mkdir(exist_ok=True)
        if not (home / KILL_FILE).exists() or not os.access(own / "cgroup.procs", os.W_OK):
            home.rmdir()
            return None
        (home / KILL_FILE).write_text("1")
        for left in [child for child in home.iterdir() if child.is_dir()]:
            remove_when_empty(left)
    except OSError:
        return None
    return home


def remove_when_empty(path: Path) -> None:
    """Remove a cgroup whose processes have been killed; raises OSError where they do not end in half a second."""
    for tried in range(REMOVE_TRIES):
        try:
            path.rmdir()
        except OSError:
            if tried == REMOVE_TRIES - 1:
                raise
            time.sleep(REMOVE_WAIT_S)
        else:
            return


def _own_cgroup() -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None or "/.." in own:
        return None
    for fields in mounts:
        if fields[fields.index("-") + 1] == "cgroup2" and fields[3] == "/":
            return Path(fields[4]) / own.lstrip("/")
    return None


class Descent:
    """The processes that descend from a main process, by /proc. `others` are the main processes of all attempts."""

    def __init__(self, main: int, token: int, others: Callable[[], Iterable[int]]) -> None:
        self._main = main
        self._mark = f"{TOKEN_VARIABLE}={token}".encode()
        self._others = others

    def members(self) -> list[int]:
        others = set(self._others()) - {self._main}
        found: list[int] = []
        for child in children_of(os.getpid()):
            if child == self._main or (child not in others and self._claims(child, others)):
                found.extend(_with_descendants(child))
        return found

    def kill(self) -> None:
        stopped: set[int] = set()
        for _ in range(STOP_PASSES_MAX):  # stop all first, so that none forks on while the rest is killed
            new = set(self.members()) - stopped
            if not new:
                break
            send_signal(self.members, signal.SIGSTOP)
            stopped |= new
        send_signal(self.members, signal.SIGKILL)

    def empty(self) -> bool:
        return not self.members()

    def remove(self) -> None:
        """Nothing is held."""

    def _claims(self, orphan: int, others: set[int]) -> bool:
        try:
            session = os.getsid(orphan)
            if session == self._main:
                return True
            if session in others:
                return False
            environment = Path(f"/proc/{orphan}/environ").read_bytes().split(b"\0")
        except OSError:
            return True
        marked = [entry for entry in environment if entry.startswith(TOKEN_VARIABLE.encode() + b"=")]
        return not marked or self._mark in marked


def children_of(pid: int) -> list[int]:
    """Ids of the children, those that have ended and are not yet waited for included."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows while it is walked
        found.extend(children_of(parent))
    return found
