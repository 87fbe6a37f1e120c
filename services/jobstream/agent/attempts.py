"""One attempt in the guardian: its processes from launch until nothing of it lives. Time is CLOCK_BOOTTIME in ms."""

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from jobstream.agent.launcher import Launcher
from jobstream.agent.tree import Tree, terminate

# Why an attempt is being ended. The first reason stands, except that `untrusted` and `revoked` override the milder ones:
# what was running when trust ended is lost, whatever had been asked before.
Reason = Literal["timed_out", "cancelled", "stopped", "revoked", "untrusted"]
HARD: Final[frozenset[str]] = frozenset(("revoked", "untrusted"))

KILL_AGAIN_MS: Final = 20  # between looks whether a killed tree is gone; a process in the kernel's hands takes longer


@dataclass(slots=True, kw_only=True)
class Attempt:
    """`exit_status` is that of the main process once it has ended, as os.waitpid gives it."""

    token: int
    launcher: Launcher
    tree: Tree
    output: int
    folder: str
    started_at_ms: int
    begun: int
    timeout_at: int | None
    launched: bool = False
    exit_status: int | None = None
    reason: Reason | None = None
    kill_at: int | None = None
    detail: bytearray = field(default_factory=bytearray)

    @property
    def killing(self) -> bool:
        """Whether everything that is left of it is being killed."""
        return self.exit_status is not None or self.reason in HARD

    def end(self, reason: Reason, now: int, grace_ms: int) -> None:
        """Begin to end it: terminate and, after the grace, kill; at once for the hard reasons."""
        first = self.reason is None
        if self.exit_status is None and (first or (reason in HARD and self.reason not in HARD)):
            self.reason = reason
        if reason in HARD or grace_ms == 0:
            self.kill(now)
        elif self.exit_status is None:
            self.kill_at = now + grace_ms if self.kill_at is None else min(self.kill_at, now + grace_ms)
            if first:
                with contextlib.suppress(OSError):
                    terminate(self.tree)

    def kill(self, now: int) -> None:
        """Kill the whole tree, and look again soon."""
        self.kill_at = now + KILL_AGAIN_MS
        if self.exit_status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.launcher.pid, signal.SIGKILL)  # ours and not yet waited for: the id is not reused
        with contextlib.suppress(OSError):
            self.tree.kill()

    def exited(self, status: int, now: int) -> None:
        """The main process has ended: nothing that it left behind may outlive it."""
        self.exit_status = status
        self.timeout_at = None
        if not self.gone():
            self.kill(now)

    def gone(self) -> bool:
        """Whether nothing of it lives any more."""
        if self.exit_status is None:
            return False
        try:
            return self.tree.empty()
        except OSError:
            return False

    def wake_at(self) -> int | None:
        """When it next needs attention, trust aside."""
        times = [at for at in (self.timeout_at, self.kill_at) if at is not None]
        return min(times) if times else None

    def report(self, now: int) -> Mapping[str, Any]:
        """What the agent is told when nothing of it lives any more."""
        assert self.exit_status is not None
        code = os.waitstatus_to_exitcode(self.exit_status)
        return {
            "did": "ended",
            "token": self.token,
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "reason": self.reason,
            "finished_at_ms": self.started_at_ms + now - self.begun,
            "detail": self.detail.decode(errors="replace") or None,
        }
