"""Launchers made ahead of need, each in a cgroup of its own where those can be made."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from jobstream.agent.launcher import Launcher, User, fork_launcher
from jobstream.agent.tree import Cgroup

SPARES: Final = 2  # a pair of dispatches in one round finds both; each takes 1 MB
REFILL_AFTER_MS: Final = 20  # forking at once would take the processor from the program that has just been started


class Spares:
    """`cgroups` is the parent of attempts' cgroups, or None."""

    def __init__(self, cgroups: Path | None, user: User | None) -> None:
        self.cgroups = cgroups
        self._user = user
        self._waiting: list[tuple[Launcher, Cgroup | None]] = []
        self._made = 0
        self.refill_at: int | None = 0  # CLOCK_BOOTTIME ms; None: all are there

    def refill(self, now: int) -> None:
        """Have as many as wanted, once it is time; where the machine has no room for a process more, later."""
        if self.refill_at is None or now < self.refill_at:
            return
        self.refill_at = now + REFILL_AFTER_MS
        with contextlib.suppress(OSError):
            while len(self._waiting) < SPARES:
                self._waiting.append(self._make())
            self.refill_at = None

    def take(self, now: int) -> tuple[Launcher, Cgroup | None]:
        """The one that has waited longest, or a new one. Raises OSError."""
        self.refill_at = now + REFILL_AFTER_MS
        return self._waiting.pop(0) if self._waiting else self._make()

    def pids(self) -> list[int]:
        return [launcher.pid for launcher, _ in self._waiting]

    def ended(self, pid: int) -> None:
        """This child has been waited for; if it was a spare it is none any more."""
        for at, (launcher, cgroup) in enumerate(self._waiting):
            if launcher.pid == pid:
                del self._waiting[at]
                launcher.socket.close()
                _remove(cgroup)
                self.refill_at = self.refill_at or 0
                return

    def close(self) -> None:
        """End all and give back the cgroups."""
        for launcher, cgroup in self._waiting:
            discard(launcher, cgroup)
        self._waiting.clear()
        if self.cgroups is not None:
            with contextlib.suppress(OSError):
                self.cgroups.rmdir()

    def _make(self) -> tuple[Launcher, Cgroup | None]:
        self._made += 1
        cgroup = None if self.cgroups is None else Cgroup(self.cgroups / str(self._made))
        try:
            return fork_launcher(None if cgroup is None else cgroup.procs_file, self._user), cgroup
        except OSError:
            _remove(cgroup)
            raise


def discard(launcher: Launcher, cgroup: Cgroup | None) -> None:
    """End a launcher that is not needed, and wait for it."""
    launcher.socket.close()
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(launcher.pid, signal.SIGKILL)
        os.waitpid(launcher.pid, 0)
    _remove(cgroup)


def _remove(cgroup: Cgroup | None) -> None:
    if cgroup is not None:
        with contextlib.suppress(OSError):
            cgroup.remove()
