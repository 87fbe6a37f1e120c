from typing import Any

import pytest

from jobstream.cli import exit_codes
from jobstream.schemas.states import JOB_STATUSES, TERMINAL


def job(
    status: str, reason: str | None = None, exit_code: int | None = None, signal: int | None = None
) -> dict[str, Any]:
    return {"status": status, "reason": reason, "exit_code": exit_code, "signal": signal}


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (job("completed", exit_code=0), 0),
        (job("failed", "exit", exit_code=3), 3),
        (job("failed", "exit", exit_code=255), 255),
        (job("failed", "exit", signal=15), 143),
        (job("failed", "exit", signal=9), 137),
        (job("failed", "timed_out", signal=15), 124),
        (job("failed", "timed_out", exit_code=1), 124),
        (job("failed", "machine_lost"), 125),
        (job("failed", "not_started"), 125),
        (job("failed", "quarantined"), 125),
        (job("cancelled"), 130),
        (job("cancelled", signal=15), 130),
    ],
)
def test_a_job_that_has_ended_stands_for_one_exit_code(ended: dict[str, Any], code: int) -> None:
    assert exit_codes.of_job(ended) == code


def test_ended_statuses_are_those_of_the_transition_table() -> None:
    assert {status for status in JOB_STATUSES if exit_codes.has_ended(job(status))} == TERMINAL


def test_a_submission_that_is_not_shown_yet_has_not_ended() -> None:
    assert not exit_codes.has_ended({"status": "submitted"})
