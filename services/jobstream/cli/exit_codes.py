"""What a command ends with. Pure: from a job as the API shows it to a number between 0 and 255."""

from collections.abc import Mapping
from typing import Any, Final

OWN_ERROR: Final = 125  # of the command line itself, as in `docker run`: usage, no API, a refused request
TIMED_OUT: Final = 124  # as `timeout` does
CANCELLED: Final = 130
INTERRUPTED: Final = 130
SIGNALLED: Final = 128  # plus the signal's number, as shells do

ENDED: Final = frozenset(("completed", "failed", "cancelled"))  # as `states.TERMINAL`, without its import of pydantic


def has_ended(job: Mapping[str, Any]) -> bool:
    return job["status"] in ENDED


def of_job(job: Mapping[str, Any]) -> int:
    """The exit code that stands for a job that has ended: its own wherever its process ended by itself."""
    if job["status"] == "completed":
        return 0
    if job["status"] == "cancelled":
        return CANCELLED
    if job.get("reason") == "timed_out":
        return TIMED_OUT
    if (signal := job.get("signal")) is not None:
        return SIGNALLED + int(signal)
    if code := job.get("exit_code"):
        return int(code)
    return OWN_ERROR  # it failed without an exit code: never started, or lost with its machine
