"""From events to row operations, merged per job, attempt and machine, so that a batch touches each row once. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from jobstream.projector.changes import Changes, JobChange, MachineChange, NewAttempt, NewJob, NewMachine, Refusal
from jobstream.runtime.errors import LogBroken
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import encode
from jobstream.schemas.envelope import Stamp, fencing_token
from jobstream.schemas.states import PRIORITIES

_LEVEL: Final = {name: level for level, name in enumerate(PRIORITIES)}


def merge(changes: Changes, event: Message, stamp: Stamp, topic: str, partition: int, offset: int) -> None:
    """Add one event of a topic (without prefix) to the changes.

    Raises LogBroken where it cannot follow; the changes may then hold half of it and are not to be used.
    """
    handler = _HANDLERS.get(topic, {}).get(type(event))
    if handler is None:
        raise LogBroken(f"{event.TYPE} is no event of the topic {topic}")
    handler(changes, event, _Place(stamp, partition, offset))


@dataclass(frozen=True, slots=True)
class _Place:
    stamp: Stamp
    partition: int
    offset: int


def _accepted(changes: Changes, event: ev.JobAccepted, place: _Place) -> None:
    key = (event.tenant, event.job_id)
    if key in changes.jobs and changes.jobs[key].required:
        raise LogBroken(f"job {event.job_id} of tenant {event.tenant} is accepted twice")
    spec, stamp = event.spec, place.stamp
    changes.jobs[key] = NewJob(
        tenant=event.tenant,
        job_id=event.job_id,
        first_offset=place.offset,
        last_offset=place.offset,
        status="queued",
        attempt=0,
        lease=True,
        name=spec.name,
        queue=spec.queue,
        priority=_LEVEL[spec.priority],
        spec=orjson.Fragment(encode(spec)),
        digest=event.digest,
        idempotency_key=event.idempotency_key,
        created_at=stamp.at_ms,
        accepted=fencing_token(stamp.round, stamp.index),
        log_partition=place.partition,
    )


def _refused(changes: Changes, event: ev.JobRefused | ev.CancelIgnored, place: _Place) -> None:
    # An upstream service may send one command id twice: the first answer stands.
    changes.refusals.setdefault(
        (event.tenant, event.command_id),
        Refusal(
            tenant=event.tenant,
            command_id=event.command_id,
            job_id=event.job_id,
            code=event.code,
            detail=event.detail,
            refused_at=place.stamp.at_ms,
        ),
    )


def _nothing(changes: Changes, event: Message, place: _Place) -> None:
    """On record in the log alone."""


def _cancel_requested(changes: Changes, event: ev.CancelRequested, place: _Place) -> None:
    job = changes.job(event, place.offset)
    job.cancel_requested = True
    job.detail = event.reason


def _assigned(changes: Changes, event: ev.JobAssigned, place: _Place) -> None:
    key = (event.tenant, event.job_id, event.attempt)
    if key in changes.attempts:
        raise LogBroken(f"attempt {event.attempt} of job {event.job_id} of tenant {event.tenant} is assigned twice")
    job = changes.job(event, place.offset)
    job.status, job.attempt = "assigned", event.attempt
    job.hold(event.machine_id, event.session, event.token, event.presence)
    job.started, job.started_at = True, None
    changes.evidence.pop(key, None)  # what came before there was a row had nowhere to go
    changes.attempts[key] = NewAttempt(
        tenant=event.tenant,
        job_id=event.job_id,
        attempt=event.attempt,
        token=event.token,
        machine_id=event.machine_id,
        session=event.session,
        assigned_at=place.stamp.at_ms,
    )


def _started(changes: Changes, event: ev.JobStarted, place: _Place) -> None:
    attempt = changes.attempt(event, event.attempt, event.token)
    job = changes.job(event, place.offset)
    job.follow(event.token)
    job.status = "running"
    job.started, job.started_at = True, event.seen_at_ms
    attempt.started_at = event.seen_at_ms


def _assignment_refused(changes: Changes, event: ev.AssignmentRefused, place: _Place) -> None:
    attempt = changes.attempt(event, event.attempt, event.token)
    job = changes.job(event, place.offset)
    job.follow(event.token)
    job.status, job.attempt = "queued", event.attempt - 1
    job.hold(None, None, None, None)
    key = (event.tenant, event.job_id, event.attempt)
    del changes.attempts[key]
    changes.evidence.pop(key, None)
    if not isinstance(attempt, NewAttempt):
        changes.removed[key] = event.token


def _attempt_lost(changes: Changes, event: ev.AttemptLost, place: _Place) -> None:
    attempt = changes.attempt(event, event.attempt, event.token)
    job = changes.job(event, place.offset)
    job.follow(event.token)
    job.status = "queued"
    job.lost_attempts += event.started
    job.hold(None, None, None, None)
    attempt.ended_at, attempt.outcome, attempt.detail = place.stamp.at_ms, "lost", event.detail


def _report_ignored(changes: Changes, event: ev.ReportIgnored, place: _Place) -> None:
    """Evidence on the attempt, where there is such a row; part of the job's story, where there is such a job."""
    key = (event.tenant, event.job_id)
    change = changes.jobs.get(key)
    if change is None:
        offset = place.offset
        changes.jobs[key] = JobChange(
            tenant=event.tenant, job_id=event.job_id, first_offset=offset, last_offset=offset, required=False
        )
    else:
        change.last_offset = place.offset
    changes.evidence.setdefault((*key, event.attempt), []).append(
        {
            "at_ms": place.stamp.at_ms,
            "token": event.token,
            "machine_id": event.machine_id,
            "session": event.session,
            "reported": event.reported,
            "code": event.code,
        }
    )


def _completed(changes: Changes, event: ev.JobCompleted, place: _Place) -> None:
    _end(changes, event, place, "completed", event.end)
    changes.jobs[event.tenant, event.job_id].detail = event.end.detail


def _failed(changes: Changes, event: ev.JobFailed, place: _Place) -> None:
    _end(changes, event, place, "failed", event.end)
    job = changes.jobs[event.tenant, event.job_id]
    job.reason, job.detail = event.reason, event.detail


def _cancelled(changes: Changes, event: ev.JobCancelled, place: _Place) -> None:
    _end(changes, event, place, "cancelled", event.end)
    job = changes.jobs[event.tenant, event.job_id]
    job.reason = "cancelled"
    job.detail = event.reason if event.reason is not None else job.detail


def _end(changes: Changes, event: ev.JobEvent, place: _Place, status: str, end: ev.AttemptEnd | None) -> None:
    at_ms = place.stamp.at_ms
    attempt = None if end is None else changes.attempt(event, end.attempt, end.token)
    job = changes.job(event, place.offset)
    job.status, job.ended_at = status, at_ms
    if end is None or attempt is None:
        job.hold(None, None, None, None)
        changes.closed[event.tenant, event.job_id] = at_ms, "cancelled" if status == "cancelled" else "failed"
        return
    job.hold(end.machine_id, None, None, None)
    job.attempt, job.exit_code, job.signal = end.attempt, end.exit_code, end.signal
    attempt.ended_at, attempt.outcome, attempt.detail = at_ms, end.outcome, end.detail
    attempt.exit_code, attempt.signal = end.exit_code, end.signal
    if end.started_at_ms is not None:  # a short attempt's end may be read before its first sign of life
        job.started_fallback = attempt.started_fallback = min(end.started_at_ms, at_ms)


def _admitted(changes: Changes, event: ev.MachineAdmitted, place: _Place) -> None:
    at_ms = place.stamp.at_ms
    changes.machines[event.machine_id] = NewMachine(
        machine_id=event.machine_id,
        session=event.session,
        last_offset=place.offset,
        status="up",
        changed_at=at_ms,
        boot_id=event.boot_id,
        cpu_millis=event.resources.cpu_millis,
        memory_mib=event.resources.memory_mib,
        labels=dict(event.labels),
        admitted_at=at_ms,
    )


def _machine_becomes(status: str) -> Callable[[Changes, Any, _Place], None]:
    def handle(changes: Changes, event: ev.MachineEvent, place: _Place) -> None:
        machine = changes.machines.get(event.machine_id)
        if machine is None:
            changes.machines[event.machine_id] = MachineChange(
                machine_id=event.machine_id,
                session=event.session,
                last_offset=place.offset,
                status=status,
                changed_at=place.stamp.at_ms,
            )
            return
        if machine.session != event.session:
            raise LogBroken(f"{event.TYPE} is about session {event.session} of {event.machine_id}, not its newest")
        machine.status, machine.changed_at, machine.last_offset = status, place.stamp.at_ms, place.offset

    return handle


_HANDLERS: Final[dict[str, dict[type[Message], Callable[[Changes, Any, _Place], None]]]] = {
    "lifecycle": {
        ev.JobAccepted: _accepted,
        ev.JobRefused: _refused,
        ev.SubmissionRepeated: _nothing,
        ev.CancelRequested: _cancel_requested,
        ev.CancelIgnored: _refused,
        ev.JobAssigned: _assigned,
        ev.JobStarted: _started,
        ev.AssignmentRefused: _assignment_refused,
        ev.AttemptLost: _attempt_lost,
        ev.ReportIgnored: _report_ignored,
        ev.JobCompleted: _completed,
        ev.JobFailed: _failed,
        ev.JobCancelled: _cancelled,
    },
    "fleet": {
        ev.MachineAdmitted: _admitted,
        ev.MachineDraining: _machine_becomes("draining"),
        ev.MachineLeft: _machine_becomes("left"),
        ev.MachineLost: _machine_becomes("lost"),
        ev.MachineReportIgnored: _nothing,
    },
}
