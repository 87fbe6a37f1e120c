"""The clocks. Pure code is given `now` as a number instead."""

import time


def monotonic_ms() -> int:
    """For how long something took. Unrelated to the date."""
    return time.monotonic_ns() // 1_000_000


def boottime_ms() -> int:
    """As monotonic, and goes on while the machine is suspended: what trust in a lease is measured by."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970 as this machine thinks; for information, never to decide by."""
    return time.time_ns() // 1_000_000
