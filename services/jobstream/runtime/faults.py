"""Points at which a test can end or freeze a process, so that crashes are repeatable.

JOBSTREAM_FAULT="leader.before_commit:3" sends SIGKILL to the process at the third time it passes that point;
"leader.before_commit:3:raise" raises FaultInjected instead, "...:stop" sends SIGSTOP.
"""

import os
import signal
from collections import Counter
from typing import Final

VARIABLE: Final = "JOBSTREAM_FAULT"


class FaultInjected(Exception):
    """Raised at a fault point because a test asked for it."""


_wanted = os.environ.get(VARIABLE)
_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Do what the test asked for here; nothing in production, where the variable is not set."""
    if _wanted is None:
        return
    point, _, rest = _wanted.partition(":")
    if point != name:
        return
    count, _, action = rest.partition(":")
    _passed[name] += 1
    if _passed[name] != int(count or 1):
        return
    if action == "raise":
        raise FaultInjected(name)
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)
