"""The pure half of the projector: events in, row operations out, and what is no fact that follows."""

from dataclasses import fields, replace

import orjson
import pytest
from tests.support.leader_log import Entry, LeaderLog, accepted

from jobstream.projector.changes import AttemptChange, Changes, JobChange, NewAttempt, NewJob
from jobstream.projector.fold import Position, Record, Slice, fold
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.commands import CancelJob
from jobstream.schemas.ids import derive_job_id

TENANT = "acme"
JOB = derive_job_id(TENANT, "one")
NAMES = {"tenant": TENANT, "job_id": JOB}
START = Position(topic="lifecycle", partition=0)


def assigned(attempt: int = 1, token: int = 7) -> ev.JobAssigned:
    return ev.JobAssigned(
        tenant=TENANT, job_id=JOB, attempt=attempt, token=token, machine_id="m-1", session="s", presence=3
    )


def started(attempt: int = 1, token: int = 7) -> ev.JobStarted:
    return ev.JobStarted(tenant=TENANT, job_id=JOB, attempt=attempt, token=token, started_at_ms=1, seen_at_ms=2)


def refused(attempt: int = 1, token: int = 7) -> ev.AssignmentRefused:
    return ev.AssignmentRefused(tenant=TENANT, job_id=JOB, attempt=attempt, token=token, machine_id="m-1", code="late")


def completed(attempt: int = 1, token: int = 7) -> ev.JobCompleted:
    end = ev.AttemptEnd(attempt=attempt, token=token, machine_id="m-1", outcome="succeeded", exit_code=0)
    return ev.JobCompleted(tenant=TENANT, job_id=JOB, end=end)


def cancel_requested() -> ev.CancelRequested:
    return ev.CancelRequested(tenant=TENANT, job_id=JOB, command_id="c")


def entries(*events: Message) -> list[Entry]:
    log = LeaderLog(seed=1, partitions=1)
    log.round = 5
    return [log.entry(event, index) for index, event in enumerate(events)]


def records(found: list[Entry], first_offset: int = 0) -> list[Record]:
    return [Record(first_offset + at, entry.headers, entry.value) for at, entry in enumerate(found)]


def fold_events(*events: Message) -> Slice:
    return fold(START, records(entries(*events)))


def changes_of(*events: Message) -> Changes:
    found = fold_events(*events)
    assert found.broken is None
    return found.changes


def plain(changes: Changes) -> list[bytes]:
    """Comparable: a spec that is JSON already is not."""
    parts = (getattr(changes, field.name) for field in fields(changes))
    return [orjson.dumps(list(part.values())) for part in parts]


def test_a_whole_life_in_one_batch_is_one_new_row_each() -> None:
    changes = changes_of(accepted(TENANT, JOB), assigned(), started(), completed())
    (job,) = changes.jobs.values()
    (attempt,) = changes.attempts.values()
    assert isinstance(job, NewJob)
    assert (job.status, job.attempt, job.token, job.machine_id, job.started_at) == ("completed", 1, None, "m-1", 2)
    assert (job.first_offset, job.last_offset) == (0, 3)
    assert isinstance(attempt, NewAttempt)
    assert (attempt.outcome, attempt.started_at, attempt.exit_code) == ("succeeded", 2, 0)


def test_a_life_without_its_beginning_is_updates_that_name_what_must_be_there() -> None:
    changes = changes_of(started(), completed())
    job, attempt = changes.jobs[TENANT, JOB], changes.attempts[TENANT, JOB, 1]
    assert type(job) is JobChange and job.expected_token == 7 and job.required
    assert type(attempt) is AttemptChange and attempt.token == 7


def test_a_refused_assignment_leaves_no_attempt_and_gives_its_number_back() -> None:
    changes = changes_of(accepted(TENANT, JOB), assigned(), refused())
    assert changes.attempts == {} and changes.removed == {}
    job = changes.jobs[TENANT, JOB]
    assert (job.status, job.attempt, job.machine_id, job.token) == ("queued", 0, None, None)


def test_a_refusal_of_a_stored_attempt_removes_it_before_its_number_is_used_again() -> None:
    changes = changes_of(refused(), assigned(token=9))
    assert changes.removed == {(TENANT, JOB, 1): 7}
    assert changes.attempts[TENANT, JOB, 1].token == 9
    assert changes.jobs[TENANT, JOB].expected_token == 7


@pytest.mark.parametrize("seen", [True, False])
def test_only_a_started_loss_counts(seen: bool) -> None:
    lost = ev.AttemptLost(
        tenant=TENANT, job_id=JOB, attempt=1, token=7, machine_id="m-1", started=seen, detail="expired"
    )
    changes = changes_of(lost)
    assert changes.jobs[TENANT, JOB].lost_attempts == int(seen)
    assert changes.attempts[TENANT, JOB, 1].outcome == "lost"


def test_a_short_attempt_gets_its_start_from_its_report_but_not_later_than_its_end() -> None:
    late = ev.AttemptEnd(attempt=1, token=7, machine_id="m-1", outcome="succeeded", started_at_ms=2**50)
    (entry,) = entries(ev.JobCompleted(tenant=TENANT, job_id=JOB, end=late))
    job = fold(START, records([entry])).changes.jobs[TENANT, JOB]
    assert job.started_at is None and job.started_fallback == entry.stamp.at_ms == job.ended_at


def test_evidence_alone_asks_for_no_row() -> None:
    ignored = ev.ReportIgnored(
        tenant=TENANT,
        job_id=JOB,
        attempt=1,
        token=3,
        machine_id="m-2",
        session="old",
        reported="finished",
        code="stale_token",
    )
    changes = changes_of(ignored)
    assert not changes.jobs[TENANT, JOB].required
    assert len(changes.evidence[TENANT, JOB, 1]) == 1
    assert changes_of(ignored, cancel_requested()).jobs[TENANT, JOB].required


@pytest.mark.parametrize(
    "events",
    [
        (accepted(TENANT, JOB), accepted(TENANT, JOB)),
        (accepted(TENANT, JOB), started()),
        (assigned(), started(token=8)),
        (assigned(), assigned()),
        (assigned(), started(), refused(), started()),
        (completed(), cancel_requested()),
        (CancelJob(tenant=TENANT, job_id=JOB),),
        (ev.RoundCommitted(cell="c", round=1, epoch=1, now_ms=1, inputs={}, written={}, core_version="1", digest=0),),
    ],
    ids=lambda events: "-".join(type(event).__name__ for event in events),
)
def test_what_does_not_follow_is_refused_and_what_came_before_is_kept(events: tuple[Message, ...]) -> None:
    made = entries(*events[:-1])
    last = replace(made[-1] if made else entries(accepted(TENANT, JOB))[0], event=events[-1])
    last = replace(last, stamp=replace(last.stamp, sequence=len(made)))
    found = fold(START, records([*made, last]))
    assert found.broken is not None
    assert f"lifecycle/0 at offset {len(made)}" in str(found.broken)
    assert found.after.next_offset == len(made) == found.after.next_sequence
    assert plain(found.changes) == plain(fold(START, records(made)).changes)


@pytest.mark.parametrize(("position", "said"), [(1, "1 are missing"), (0, "a repeat")])
def test_a_gap_and_a_repeat_are_told_apart(position: int, said: str) -> None:
    first, second = entries(accepted(TENANT, JOB), assigned())
    sequence = 2 if position else 0
    found = fold(START, records([first, replace(second, stamp=replace(second.stamp, sequence=sequence))]))
    assert said in str(found.broken)
    assert found.after.next_sequence == 1


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (Record(4, [], b"{}"), "ce_type is missing"),
        (Record(4, entries(started())[0].headers, b"{"), "json"),
        (Record(4, entries(started())[0].headers, None), "empty"),
        (Record(4, entries(started())[0].headers[:6], entries(started())[0].value), "no sequence number"),
        (Record(4, [*entries(started())[0].headers, ("ce_type", b"jobstream.later.v9")], b"{}"), "unknown_type"),
    ],
)
def test_an_unreadable_record_stops_with_its_place(record: Record, said: str) -> None:
    found = fold(START, [record])
    assert said in str(found.broken) and "lifecycle/0 at offset 4" in str(found.broken)
    assert found.after == START


def test_the_position_remembers_where_the_newest_round_began() -> None:
    log = LeaderLog(seed=1, partitions=1)
    made = []
    for number, event in ((3, accepted(TENANT, JOB)), (4, assigned()), (4, started())):
        log.round = number
        made.append(log.entry(event))
    found = fold(START, records(made, first_offset=10))
    assert (found.after.last_round, found.after.round_offset, found.after.next_offset) == (4, 11, 13)
    log.round = 4
    again = fold(found.after, records([log.entry(completed())], first_offset=14))
    assert (again.after.last_round, again.after.round_offset, again.after.next_sequence) == (4, 11, 4)


def test_of_a_command_id_that_is_answered_twice_the_first_answer_stands() -> None:
    first = ev.JobRefused(tenant=TENANT, job_id=JOB, command_id="x", code="conflict", detail="one")
    changes = changes_of(first, first.model_copy(update={"detail": "two"}))
    assert [refusal.detail for refusal in changes.refusals.values()] == ["one"]
