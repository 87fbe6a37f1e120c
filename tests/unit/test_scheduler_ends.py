"""Each way in which an attempt or a job ends: the same side effects, whoever ends it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.scheduler_checks import check_log
from tests.support.scheduler_inboxes import job_id
from tests.support.scheduler_world import (
    TIMES,
    Leader,
    assigned,
    dispatched,
    kinds,
    new_cell,
    only,
    running,
    with_machine,
)

from jobstream.scheduler.state import LOST_ATTEMPTS_MAX, Job
from jobstream.schemas import events as ev


def _expire(leader: Leader, job: Job) -> None:
    leader.inboxes.present(number=leader.ticks + 2)
    leader.pass_time(TIMES.expires_after_ms + 2_000)


def _cancel_then(report: Callable[[Leader, Job], Any]) -> Callable[[Leader, Job], None]:
    def end(leader: Leader, job: Job) -> None:
        leader.inboxes.cancel("acme", job.job_id)
        leader.round()
        report(leader, job)
        leader.round()

    return end


def _report(outcome: str, **changes: Any) -> Callable[[Leader, Job], None]:
    def end(leader: Leader, job: Job) -> None:
        leader.inboxes.finished(job, outcome, **changes)  # type: ignore[arg-type]
        leader.round()

    return end


ENDS: dict[str, tuple[Callable[[Leader, Job], None], str]] = {
    "exit 0": (_report("succeeded"), "completed"),
    "exit 3": (_report("failed"), "failed"),
    "signal": (_report("failed", exit_code=None, signal=9), "failed"),
    "timeout": (_report("timed_out"), "failed"),
    "cancel": (_cancel_then(lambda leader, job: leader.inboxes.finished(job, "cancelled")), "cancelled"),
    "cancel, refused": (_cancel_then(lambda leader, job: leader.inboxes.refused(job)), "cancelled"),
    "cancel, finished first": (_cancel_then(lambda leader, job: leader.inboxes.finished(job)), "completed"),
    "cancel, failed first": (_cancel_then(lambda leader, job: leader.inboxes.finished(job, "failed")), "failed"),
    "cancel, lost": (_cancel_then(lambda leader, job: leader.inboxes.finished(job, "lost")), "cancelled"),
    "cancel, expired": (_cancel_then(_expire), "cancelled"),
}


@pytest.mark.parametrize("start", [assigned, running])
@pytest.mark.parametrize("way", ENDS)
def test_every_end_gives_back_and_is_told_once(way: str, start: Callable[..., Job]) -> None:
    end, status = ENDS[way]
    leader = new_cell()
    with_machine(leader)
    job = start(leader, cpu=900)
    slot = leader.state.machines["m1"].slot
    assert leader.state.fleet.free_cpu[slot] == 100
    end(leader, job)
    assert not leader.state.jobs and not leader.state.leases
    assert leader.state.fleet.free_cpu[slot] == 1_000
    assert leader.state.memory.status("acme", job.job_id) == status
    assert not leader.state.soft.to_start and not any(leader.state.soft.fresh.values())
    assert not any(leader.state.soft.aged.values())
    assert check_log(leader.log) == {("acme", job.job_id): status}
    leader.inboxes.submit(id=job.job_id, cpu=900)
    assert kinds(leader.round()) == [ev.SubmissionRepeated]


def test_what_is_written_of_an_end() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.finished(job, "failed", exit_code=None, signal=11)
    failed = only(leader.round(), ev.JobFailed)
    assert (failed.reason, failed.end.signal, failed.end.attempt, failed.end.machine_id) == ("exit", 11, 1, "m1")
    assert "signal 11" in failed.detail
    job = running(leader)
    leader.inboxes.finished(job, "timed_out")
    assert only(leader.round(), ev.JobFailed).reason == "timed_out"


@pytest.mark.parametrize("start", [assigned, running])
def test_a_lost_attempt_is_run_again_elsewhere_or_there_once_it_is_heard(start: Callable[..., Job]) -> None:
    leader = new_cell()
    with_machine(leader)
    job = start(leader)
    assert job.lease is not None
    token = job.lease.token
    leader.inboxes.finished(job, "lost")
    made = leader.round()
    assert ev.AttemptLost in kinds(made)
    again = only(made, ev.JobAssigned)
    assert again.attempt == 2 and again.token > token


def test_an_agent_that_ends_work_unasked_loses_the_attempt_not_the_job() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.finished(job, "cancelled")
    assert ev.AttemptLost in kinds(leader.round())
    assert job.status == "assigned" and job.attempt == 2


def test_the_fifth_started_attempt_that_is_lost_ends_the_job() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    other = running(leader)
    for lost in range(1, LOST_ATTEMPTS_MAX + 1):
        leader.inboxes.finished(job, "lost")
        made = leader.round()
        if lost < LOST_ATTEMPTS_MAX:
            assert job.lost_attempts == lost and job.status == "assigned"
    failed = only(made, ev.JobFailed)
    assert failed.reason == "machine_lost" and failed.detail.startswith("machine lost")
    assert (failed.end.outcome, failed.end.attempt) == ("lost", LOST_ATTEMPTS_MAX)
    assert other.status == "running"


def test_an_attempt_that_never_started_does_not_spend_the_cap() -> None:
    leader = new_cell()
    with_machine(leader)
    job = assigned(leader)
    for number in range(LOST_ATTEMPTS_MAX + 2):
        leader.pass_time(TIMES.expires_after_ms + 2_000)
        assert job.lease is None and job.lost_attempts == 0
        leader.inboxes.present(number=10 + number)
        leader.round()
        assert job.status == "assigned"


def test_a_refused_assignment_gives_the_attempts_number_back() -> None:
    leader = new_cell()
    with_machine(leader)
    job = assigned(leader)
    leader.inboxes.refused(job)
    made = leader.round()
    assert kinds(made) == [ev.AssignmentRefused]  # not placed there again before it is heard
    assert (job.attempt, job.status, job.lost_attempts) == (0, "queued", 0)
    leader.inboxes.present(number=2)
    assert only(leader.round(), ev.JobAssigned).attempt == 1


# ---- stale reports


@pytest.mark.parametrize("kind", ["finished", "refused"])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"token": 1}, "stale_token"),
        ({"machine_id": "m2"}, "other_machine"),
        ({"session": "s0"}, "other_session"),
        ({"token": 1, "machine_id": "m2", "session": "s0"}, "stale_token"),
    ],
)
def test_a_report_that_is_not_the_leases_is_evidence_and_changes_nothing(kind: str, changes: Any, code: str) -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    digest = leader.state.digest
    getattr(leader.inboxes, kind)(job, **changes)
    made = leader.round()
    ignored = only(made, ev.ReportIgnored)
    assert ignored.code == code and ignored.token == changes.get("token", ignored.token)
    assert ignored.reported == ("succeeded" if kind == "finished" else "refused: late")
    assert job.status == "running" and leader.state.digest == digest


def test_a_report_without_a_lease_is_evidence() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.finished(job)
    leader.inboxes.finished(job)
    assert kinds(leader.round()) == [ev.JobCompleted, ev.ReportIgnored]
    job = assigned(leader)
    leader.inboxes.refused(job)
    leader.inboxes.finished(job)
    assert kinds(leader.round()) == [ev.AssignmentRefused, ev.ReportIgnored]
    assert job.status == "queued"


def test_the_first_attempts_report_cannot_end_the_second() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    old = leader.inboxes.finished(job, "lost")
    leader.round()
    assert job.lease is not None and job.attempt == 2
    leader.inboxes.put("completions", old.content.model_copy(update={"outcome": "succeeded"}))  # type: ignore[union-attr]
    assert only(leader.round(), ev.ReportIgnored).code == "stale_token"
    assert job.status == "assigned"


def test_a_report_on_a_job_that_never_was_is_a_dead_letter_alone() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.finished(job, job_id=job_id(999))
    made = leader.round()
    assert not made.records
    assert [fault.reason for _, fault in made.dead_letters] == ["unknown_job"]


# ---- heartbeats


def test_the_first_heartbeat_starts_and_the_next_ones_say_nothing() -> None:
    leader = new_cell()
    with_machine(leader)
    job = assigned(leader)
    leader.inboxes.heartbeat(job)
    leader.inboxes.heartbeat(job)
    started = only(leader.round(), ev.JobStarted)
    assert job.lease is not None and started.token == job.lease.token
    leader.inboxes.heartbeat(job)
    made = leader.round()
    assert not made.records and not made.dispatches


def test_a_start_and_its_end_in_one_round_are_told_in_this_order() -> None:
    leader = new_cell()
    with_machine(leader)
    job = assigned(leader)
    leader.inboxes.finished(job)
    leader.inboxes.heartbeat(job)
    assert kinds(leader.round()) == [ev.JobStarted, ev.JobCompleted]


def test_a_heartbeat_of_a_closed_lease_is_revoked_each_time() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.heartbeat(job)
    late = leader.inboxes.places["heartbeats", leader.state.partition_of("acme")][-1].content
    leader.round()
    leader.inboxes.finished(job, "lost")
    leader.round()
    for _ in range(2):
        leader.inboxes.put("heartbeats", late)
        told = dispatched(leader.round())
        assert [type(dispatch) for dispatch in told] == [ev.RevokeAttempt]
        assert told[0].token == late.leases[0].token != job.lease.token  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", [{"machine_id": "m2"}, {"session": "s0"}])
def test_a_heartbeat_from_elsewhere_keeps_no_lease_alive(changes: dict[str, str]) -> None:
    leader = new_cell()
    with_machine(leader)
    job = assigned(leader)
    leader.inboxes.heartbeat(job, **changes)
    made = leader.round()
    (told,) = dispatched(made)
    assert isinstance(told, ev.RevokeAttempt)
    assert (told.machine_id, told.session) == (changes.get("machine_id", "m1"), changes.get("session", "s1"))
    assert not made.records and job.lease is not None and job.lease.seen is None


def test_a_heartbeat_of_a_marked_lease_is_told_to_cancel_each_time() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.cancel("acme", job.job_id)
    leader.round()
    for _ in range(2):
        leader.inboxes.heartbeat(job)
        assert [type(told) for told in dispatched(leader.round())] == [ev.CancelAttempt]
