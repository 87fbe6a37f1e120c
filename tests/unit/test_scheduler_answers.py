"""What the leader says to commands: one fact each, in the round that takes them."""

from typing import Any

import pytest
from tests.support.scheduler_inboxes import START_MS, job_id
from tests.support.scheduler_world import assigned, dispatched, kinds, new_cell, only, running, with_machine

from jobstream.scheduler.memory import WINDOW_MS
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.ids import derive_job_id


def test_a_submission_is_accepted_whole() -> None:
    leader = new_cell()
    submission = leader.inboxes.submit("acme", queue="nightly", priority="high", env={"A": "b"})
    accepted = only(leader.round(), ev.JobAccepted)
    command = submission.content
    assert isinstance(command, cmd.SubmitJob)
    assert (accepted.tenant, accepted.job_id, accepted.command_id) == ("acme", command.job_id, submission.event_id)
    assert accepted.spec == command.spec
    assert leader.job(submission).status == "queued"


def test_a_repeated_submission_is_a_no_op_while_it_is_live_and_after_it_has_ended() -> None:
    leader = new_cell()
    leader.inboxes.submit(id=job_id(7))
    leader.round()
    again = leader.inboxes.submit(id=job_id(7))
    assert only(leader.round(), ev.SubmissionRepeated).command_id == again.event_id
    leader.inboxes.cancel("acme", job_id(7))
    leader.round()
    leader.inboxes.submit(id=job_id(7))
    assert kinds(leader.round()) == [ev.SubmissionRepeated]
    assert not leader.state.jobs


def test_two_submissions_of_one_id_in_one_round_make_one_job() -> None:
    leader = new_cell()
    leader.inboxes.submit(id=job_id(7))
    leader.inboxes.submit(id=job_id(7))
    leader.inboxes.submit(id=job_id(7), name="another")
    made = leader.round()
    assert kinds(made) == [ev.JobAccepted, ev.SubmissionRepeated, ev.JobRefused]
    assert made.records[2].event.code == "conflict"  # type: ignore[attr-defined]


@pytest.mark.parametrize("ended", [False, True])
def test_the_same_id_with_another_body_is_a_conflict(ended: bool) -> None:
    leader = new_cell()
    leader.inboxes.submit(id=job_id(7), name="one")
    leader.round()
    if ended:
        leader.inboxes.cancel("acme", job_id(7))
        leader.round()
    leader.inboxes.submit(id=job_id(7), name="two")
    assert only(leader.round(), ev.JobRefused).code == "conflict"


def test_the_same_id_of_two_tenants_is_two_jobs() -> None:
    leader = new_cell()
    leader.inboxes.submit("acme", id=job_id(7))
    leader.inboxes.submit("globex", id=job_id(7))
    assert kinds(leader.round()) == [ev.JobAccepted, ev.JobAccepted]


def test_a_derived_id_must_be_that_of_its_tenant_and_key() -> None:
    leader = new_cell()
    leader.inboxes.submit(id=derive_job_id("acme", "k1"), idempotency_key="k1")
    leader.inboxes.submit(id=derive_job_id("acme", "k2"), idempotency_key="k1")
    leader.inboxes.submit("globex", id=derive_job_id("acme", "k3"), idempotency_key="k3")
    leader.inboxes.submit(id=derive_job_id("acme", "k4"))
    leader.inboxes.submit(id=job_id(7), idempotency_key="k5")
    events = [record.event for record in leader.round().records]
    assert sum(isinstance(event, ev.JobAccepted) for event in events) == 1
    refused = [event for event in events if isinstance(event, ev.JobRefused)]
    assert [event.code for event in refused] == ["id_not_derived"] * 4


@pytest.mark.parametrize(
    ("made_at", "code"),
    [
        (START_MS - WINDOW_MS, None),
        (START_MS - WINDOW_MS - 1, "id_too_old"),
        (START_MS + 5 * 60_000, None),
        (START_MS + 5 * 60_000 + 1, "id_from_future"),
        (0, "id_too_old"),
        (2**48 - 1, "id_from_future"),
    ],
)
def test_an_ids_age_is_judged_by_the_brokers_clock(made_at: int, code: str | None) -> None:
    leader = new_cell()
    leader.inboxes.submit(id=job_id(7, made_at))
    event = leader.round().records[0].event
    assert getattr(event, "code", None) == code


def test_a_producer_speaks_for_its_tenants_alone() -> None:
    leader = new_cell()
    topic = "submissions.billing"
    leader.inboxes.submit("acme", id=job_id(1), topic=topic)
    leader.inboxes.submit("globex", id=job_id(2), topic=topic)
    leader.inboxes.submit("acme", id=job_id(3), topic="submissions.unknown")
    leader.inboxes.cancel("globex", job_id(2), topic=topic)
    answers: dict[str, Any] = {record.event.job_id: record.event for record in leader.round().records}  # type: ignore[attr-defined]
    assert isinstance(answers[job_id(1)], ev.JobAccepted)
    assert isinstance(answers[job_id(3)], ev.JobRefused) and answers[job_id(3)].code == "tenant_not_granted"
    assert isinstance(answers[job_id(2)], ev.CancelIgnored) and answers[job_id(2)].code == "tenant_not_granted"
    assert len(leader.state.jobs) == 1


# ---- cancels


def test_cancel_of_a_queued_job_ends_it_at_once() -> None:
    leader = new_cell()
    submission = leader.inboxes.submit()
    leader.round()
    cancel = leader.inboxes.cancel("acme", leader.job(submission).job_id)
    ended = only(leader.round(), ev.JobCancelled)
    assert (ended.command_id, ended.reason, ended.end) == (cancel.event_id, "not needed", None)
    assert leader.state.backlog.size == 0


def test_cancel_in_the_round_of_the_submission_ends_it() -> None:
    leader = new_cell()
    leader.inboxes.submit(id=job_id(7))
    leader.inboxes.cancel("acme", job_id(7))
    with_machine(leader)
    assert ev.JobAssigned not in [type(event) for event in leader.log.events()]
    assert leader.state.memory.status("acme", job_id(7)) == "cancelled"


@pytest.mark.parametrize("state", ["assigned", "running"])
def test_cancel_of_a_leased_job_marks_it_and_tells_its_machine(state: str) -> None:
    leader = new_cell()
    with_machine(leader)
    job = (assigned if state == "assigned" else running)(leader)
    leader.inboxes.cancel("acme", job.job_id)
    made = leader.round()
    assert kinds(made) == [ev.CancelRequested]
    assert job.lease is not None and job.status == state
    (told,) = dispatched(made)
    assert isinstance(told, ev.CancelAttempt) and (told.token, told.machine_id) == (job.lease.token, "m1")
    leader.inboxes.cancel("acme", job.job_id)
    assert only(leader.round(), ev.CancelIgnored).code == "already_requested"


def test_cancel_of_a_job_that_has_ended_is_ignored() -> None:
    leader = new_cell()
    leader.inboxes.submit(id=job_id(7))
    leader.inboxes.cancel("acme", job_id(7))
    leader.inboxes.cancel("acme", job_id(7))
    ignored = only(leader.round(), ev.CancelIgnored)
    assert ignored.code == "ended" and "cancelled" in ignored.detail


def test_cancel_of_an_unknown_or_foreign_job_is_answered_alike_and_a_dead_letter() -> None:
    leader = new_cell()
    leader.inboxes.submit("acme", id=job_id(7))
    leader.round()
    leader.inboxes.cancel("globex", job_id(7))
    leader.inboxes.cancel("globex", job_id(8))
    made = leader.round()
    codes = [record.event.code for record in made.records]  # type: ignore[attr-defined]
    assert codes == ["unknown_job", "unknown_job"]
    assert [fault.reason for _, fault in made.dead_letters] == ["unknown_job", "unknown_job"]
    assert len(leader.state.jobs) == 1
