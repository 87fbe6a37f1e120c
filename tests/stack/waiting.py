"""Waiting in tests: always bounded, and saying what did not come."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.05


def eventually(check: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """The first answer of `check` that is true; fails the test when there is none in time."""
    deadline = time.monotonic() + within_s
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(POLL_S)
