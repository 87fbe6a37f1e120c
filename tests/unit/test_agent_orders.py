"""Readings of dispatches, orders to start, reports, heartbeats."""

import pytest

from jobstream.agent import orders
from jobstream.schemas.codec import encode
from jobstream.schemas.commands import HEARTBEAT_LEASES_MAX, HeldLease, JobSpec
from jobstream.schemas.envelope import Envelope, to_headers
from jobstream.schemas.errors import Unreadable
from jobstream.schemas.events import AssignAttempt, JobAssigned, RevokeAttempt
from jobstream.schemas.resources import Resources

JOB = "0190f0f0-0000-7000-8000-000000000000"
NAMES = {"machine_id": "m1", "session": "s1", "tenant": "acme", "job_id": JOB, "attempt": 2, "token": 65_537}


def assignment(**spec: object) -> AssignAttempt:
    wanted = {"name": "n", "command": "echo hi", "resources": Resources(cpu_millis=250, memory_mib=64), **spec}
    return AssignAttempt(**NAMES, presence=3, spec=JobSpec(**wanted))  # type: ignore[arg-type]


def headers(kind: str) -> object:
    return to_headers(Envelope(id="1", type=kind, source="/test", time="2026-01-01T00:00:00Z"))


def test_dispatches_are_read_and_nothing_else_is() -> None:
    assign = assignment()
    assert orders.read_dispatch(headers(AssignAttempt.TYPE), encode(assign)) == assign
    revoke = RevokeAttempt(**NAMES)  # type: ignore[arg-type]
    assert orders.read_dispatch(headers(RevokeAttempt.TYPE), encode(revoke)) == revoke
    for kind, value, reason in [
        (JobAssigned.TYPE, encode(assign), "unknown_type"),
        (AssignAttempt.TYPE, b"{", "json"),
        (AssignAttempt.TYPE, b"", "empty"),
        (AssignAttempt.TYPE, b'{"machine_id": "m1"}', "schema"),
    ]:
        with pytest.raises(Unreadable) as raised:
            orders.read_dispatch(headers(kind), value)
        assert raised.value.reason == reason


def test_a_text_is_for_the_shell_and_a_list_is_run_as_it_is() -> None:
    def argv(command: object) -> object:
        order = orders.start_order(assignment(command=command), presence_begun=1, folder="/w", path="/bin")
        return order["argv"]

    assert argv("echo $HOME") == ["/bin/sh", "-c", "echo $HOME"]
    assert argv(("echo", "$HOME")) == ["echo", "$HOME"]


def test_a_job_can_set_its_path_and_home_but_not_who_it_is() -> None:
    env = {"PATH": "/mine", "HOME": "/home/x", "JOBSTREAM_JOB_ID": "forged", "JOBSTREAM_MORE": "kept"}
    told = orders.start_order(assignment(env=env), presence_begun=1, folder="/w", path="/bin")["env"]
    assert (told["PATH"], told["HOME"], told["LANG"]) == ("/mine", "/home/x", "C.UTF-8")
    assert (told["JOBSTREAM_JOB_ID"], told["JOBSTREAM_FENCING_TOKEN"]) == (JOB, "65537")
    assert told["JOBSTREAM_MORE"] == "kept"


@pytest.mark.parametrize(
    ("reason", "exit_code", "outcome"),
    [
        (None, 0, "succeeded"),
        (None, 1, "failed"),
        (None, None, "failed"),
        ("timed_out", 0, "timed_out"),
        ("cancelled", 0, "cancelled"),
        ("revoked", None, "lost"),
        ("untrusted", None, "lost"),
        ("stopped", 0, "lost"),
        ("guardian", None, "lost"),
    ],
)
def test_how_an_attempt_ended(reason: str | None, exit_code: int | None, outcome: str) -> None:
    ended = {
        "reason": reason,
        "exit_code": exit_code,
        "signal": 9 if exit_code is None else None,
        "finished_at_ms": 7,
        "detail": "a\x00b",
    }
    report = orders.finished(orders.lease_fields(assignment()), 5, ended)
    assert (report.outcome, report.exit_code, report.started_at_ms, report.finished_at_ms) == (outcome, exit_code, 5, 7)
    assert (report.token, report.attempt, report.session) == (65_537, 2, "s1")
    assert report.detail is not None and "\x00" not in report.detail


def test_heartbeats_are_one_record_a_tenant_and_bounded() -> None:
    held = [("b", HeldLease(job_id=JOB, token=token, started_at_ms=1)) for token in range(HEARTBEAT_LEASES_MAX + 1)]
    held.insert(7, ("a", HeldLease(job_id=JOB, token=10**6, started_at_ms=1)))
    beats = orders.heartbeats("m1", "s1", 5, held)
    assert [(beat.tenant, beat.number, len(beat.leases)) for beat in beats] == [
        ("b", 5, HEARTBEAT_LEASES_MAX),
        ("b", 6, 1),
        ("a", 7, 1),
    ]
    listed = {lease.token for beat in beats for lease in beat.leases}
    assert listed == {*range(HEARTBEAT_LEASES_MAX + 1), 10**6}
    assert orders.heartbeats("m1", "s1", 5, []) == []
