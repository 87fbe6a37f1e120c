"""Processes by what cannot be mistaken: pidfd and start time, since ids are reused; children that die with their parent."""

import asyncio
import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process for good: its id and its start, in clock ticks since boot (field 22 of /proc/PID/stat)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that bears this id now, or None."""
        started = _started(pid)
        return None if started is None else cls(pid=pid, started=started)

    def open(self) -> int | None:
        """A pidfd, or None when this process is gone (also when another one bears its id)."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if _started(self.pid) == self.started and not select.select([fd], [], [], 0)[0]:
            return fd
        os.close(fd)
        return None

    def alive(self) -> bool:
        fd = self.open()
        if fd is None:
            return False
        os.close(fd)
        return True

    def signal_and_wait(self, number: signal.Signals, timeout_s: float) -> bool:
        """Send a signal and wait for the end; False when it still lives after the time. True at once when it is gone."""
        fd = self.open()
        if fd is None:
            return True
        try:
            signal.pidfd_send_signal(fd, number)
            return bool(select.select([fd], [], [], timeout_s)[0])
        except ProcessLookupError:
            return True
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How a process is started; `user` and `group` are numeric, None for those of this process."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    user: int | None = None
    group: int | None = None


def spawn(command: Command, log: int) -> "subprocess.Popen[bytes]":
    """Start a child in a session of its own that the kernel kills (SIGKILL) when this process ends, however it ends.

    To be called from the main thread: the kernel sends the signal when the *thread* that forked ends.
    """
    return subprocess.Popen(
        command.argv,
        env=command.env,
        cwd=command.cwd,
        user=command.user,
        group=command.group,
        extra_groups=None if command.user is None else [],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # a Ctrl-C at the terminal is the supervisor's alone: it stops its children in order
        preexec_fn=die_with_parent(),
    )


def die_with_parent() -> Callable[[], None]:
    """What a child runs between fork and exec; subprocess calls it after the change of user, which would clear the setting."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel knew
            os._exit(1)

    return prepare


async def ended(pid: int) -> None:
    """Wait until a child has ended; the caller reaps it."""
    loop = asyncio.get_running_loop()
    fd = os.pidfd_open(pid)
    gone = asyncio.Event()
    loop.add_reader(fd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])  # the name in parentheses may hold anything
