"""The answer to one input: at most one fact. Pure: reads the state, changes nothing.

`Refused` content becomes a dead letter besides, where an operator should see it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobstream.scheduler.inputs import Fault, Input, producer_of
from jobstream.scheduler.memory import WINDOW_MS
from jobstream.scheduler.state import LOST_ATTEMPTS_MAX, Job, Lease, State
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import digest_of
from jobstream.schemas.ids import derive_job_id, is_derived, job_id_ms
from jobstream.schemas.resources import Resources

FUTURE_MS_MAX: Final = 5 * 60 * 1000  # how far a producer's clock may be ahead of the broker's

Grants = Mapping[str, frozenset[str]]  # upstream service → the tenants it may speak for


@dataclass(frozen=True, slots=True)
class Answer:
    """The fact, where there is one, and why the record is a dead letter, where it is one."""

    event: Message | None = None
    fault: Fault | None = None


def answer(state: State, record: Input, grants: Grants) -> Answer:
    """What the leader says to one input. Heartbeats, presences and ticks are observed, not answered: see `observe`."""
    handler = _HANDLERS.get(type(record.content))
    return _NOTHING if handler is None else handler(state, record, record.content, grants)


def _unreadable(state: State, record: Input, fault: Fault, grants: Grants) -> Answer:
    return Answer(fault=fault)


# ---- commands


def _submission(state: State, record: Input, command: cmd.SubmitJob, grants: Grants) -> Answer:
    return Answer(_submission_fact(state, record, command, grants))


def _submission_fact(state: State, record: Input, command: cmd.SubmitJob, grants: Grants) -> Message:
    tenant, job_id, command_id = command.tenant, command.job_id, record.event_id
    if (refusal := _inadmissible(record, command, grants)) is not None:
        code, detail = refusal
        return ev.JobRefused(tenant=tenant, job_id=job_id, command_id=command_id, code=code, detail=detail)  # type: ignore[arg-type]
    digest = digest_of(command.spec)
    live = state.jobs.get((tenant, job_id))
    known = live is not None or state.memory.status(tenant, job_id) is not None
    if known:
        same = live.digest == digest if live is not None else state.memory.same_digest(tenant, job_id, digest)
        if same:
            return ev.SubmissionRepeated(tenant=tenant, job_id=job_id, command_id=command_id)
        return ev.JobRefused(
            tenant=tenant,
            job_id=job_id,
            command_id=command_id,
            code="conflict",
            detail=f"job {job_id} was submitted with another body; use another idempotency key or job id",
        )
    return ev.JobAccepted(
        tenant=tenant,
        job_id=job_id,
        command_id=command_id,
        digest=digest,
        idempotency_key=command.idempotency_key,
        spec=command.spec,
    )


def _inadmissible(record: Input, command: cmd.SubmitJob, grants: Grants) -> tuple[str, str] | None:
    """Code and sentence where a submission cannot be taken, whatever the state."""
    if (refusal := _not_granted(record, command.tenant, grants)) is not None:
        return refusal
    if command.idempotency_key is not None or is_derived(command.job_id):
        if command.idempotency_key is None:
            return "id_not_derived", "a job id of UUID version 5 needs the idempotency key that it is derived from"
        wanted = derive_job_id(command.tenant, command.idempotency_key)
        if command.job_id != wanted:
            return "id_not_derived", f"with this idempotency key the job id must be {wanted}"
        return None
    age_ms = record.appended_ms - job_id_ms(command.job_id)
    if age_ms > WINDOW_MS:
        return "id_too_old", f"the job id was made {age_ms} ms before it came; {WINDOW_MS} at most: make a new one"
    if age_ms < -FUTURE_MS_MAX:
        return "id_from_future", f"the job id's time is {-age_ms} ms ahead of the broker's clock: check the producer's"
    return None


def _not_granted(record: Input, tenant: str, grants: Grants) -> tuple[str, str] | None:
    producer = producer_of(record.topic)
    if producer is None or tenant in grants.get(producer, frozenset()):
        return None
    return "tenant_not_granted", f"the producer {producer} may not speak for the tenant {tenant}"


def _cancel(state: State, record: Input, command: cmd.CancelJob, grants: Grants) -> Answer:
    tenant, job_id, command_id = command.tenant, command.job_id, record.event_id

    def ignored(code: str, detail: str) -> ev.CancelIgnored:
        return ev.CancelIgnored(tenant=tenant, job_id=job_id, command_id=command_id, code=code, detail=detail)  # type: ignore[arg-type]

    if (refusal := _not_granted(record, tenant, grants)) is not None:
        return Answer(ignored(*refusal))
    job = state.jobs.get((tenant, job_id))
    if job is None:
        if (status := state.memory.status(tenant, job_id)) is not None:
            return Answer(ignored("ended", f"job {job_id} has ended already: {status}"))
        detail = f"no job {job_id} of this tenant is live, or ended within the last {WINDOW_MS // 3_600_000} h"
        return Answer(ignored("unknown_job", detail), Fault("unknown_job", detail))
    if job.lease is None:
        return Answer(ev.JobCancelled(tenant=tenant, job_id=job_id, command_id=command_id, reason=command.reason))
    if job.cancel_requested:
        return Answer(ignored("already_requested", f"job {job_id} is being cancelled"))
    return Answer(ev.CancelRequested(tenant=tenant, job_id=job_id, command_id=command_id, reason=command.reason))


# ---- reports of agents on attempts


def _report(state: State, record: Input, report: cmd.AttemptFinished | cmd.AttemptRefused, grants: Grants) -> Answer:
    job = state.jobs.get((report.tenant, report.job_id))
    if job is None and state.memory.status(report.tenant, report.job_id) is None:
        detail = f"no job {report.job_id} of tenant {report.tenant} is live or ended lately"
        return Answer(fault=Fault("unknown_job", detail))
    lease = job.lease if job is not None else None
    if job is None or lease is None:
        return Answer(_stale(report, "no_lease"))
    if lease.token != report.token:
        return Answer(_stale(report, "stale_token"))
    if lease.machine_id != report.machine_id:
        return Answer(_stale(report, "other_machine"))
    if lease.session != report.session:
        return Answer(_stale(report, "other_session"))
    if type(report) is cmd.AttemptFinished:
        return Answer(_finished(job, lease, report))
    assert type(report) is cmd.AttemptRefused
    return Answer(_refused(job, lease, report))


def _stale(report: cmd.AttemptFinished | cmd.AttemptRefused, code: str) -> ev.ReportIgnored:
    reported = report.outcome if isinstance(report, cmd.AttemptFinished) else f"refused: {report.code}"
    return ev.ReportIgnored(
        tenant=report.tenant,
        job_id=report.job_id,
        attempt=report.attempt,
        token=report.token,
        machine_id=report.machine_id,
        session=report.session,
        reported=reported,
        code=code,  # type: ignore[arg-type]
    )


def _refused(job: Job, lease: Lease, report: cmd.AttemptRefused) -> Message:
    if job.cancel_requested:
        return ev.JobCancelled(tenant=job.tenant, job_id=job.job_id, reason="cancelled before it started")
    return ev.AssignmentRefused(
        tenant=job.tenant,
        job_id=job.job_id,
        attempt=lease.attempt,
        token=lease.token,
        machine_id=lease.machine_id,
        code=report.code,
        detail=report.detail,
    )


def _finished(job: Job, lease: Lease, report: cmd.AttemptFinished) -> Message:
    if report.outcome == "lost" or (report.outcome == "cancelled" and not job.cancel_requested):
        # An agent that stops ends what it runs without having been asked: the job is to run elsewhere.
        return attempt_lost(
            job, lease, report.detail or f"the agent ended the attempt ({report.outcome})", started=True
        )
    end = ev.AttemptEnd(
        attempt=lease.attempt,
        token=lease.token,
        machine_id=lease.machine_id,
        outcome=report.outcome,
        exit_code=report.exit_code,
        signal=report.signal,
        started_at_ms=report.started_at_ms,
        finished_at_ms=report.finished_at_ms,
        detail=report.detail,
    )
    if report.outcome == "succeeded":
        return ev.JobCompleted(tenant=job.tenant, job_id=job.job_id, end=end)
    if report.outcome == "cancelled":
        return ev.JobCancelled(tenant=job.tenant, job_id=job.job_id, end=end)
    if report.outcome == "timed_out":
        return ev.JobFailed(
            tenant=job.tenant, job_id=job.job_id, end=end, reason="timed_out", detail="ran longer than its timeout"
        )
    how = f"ended by signal {report.signal}" if report.signal is not None else f"exit code {report.exit_code}"
    return ev.JobFailed(tenant=job.tenant, job_id=job.job_id, end=end, reason="exit", detail=report.detail or how)


def attempt_lost(job: Job, lease: Lease, detail: str, *, started: bool) -> Message:
    """What follows when an attempt is gone with its machine: the job runs again, unless it was to be cancelled, or
    has been lost too often."""
    lost = job.lost_attempts + started
    end = ev.AttemptEnd(
        attempt=lease.attempt, token=lease.token, machine_id=lease.machine_id, outcome="lost", detail=detail
    )
    if job.cancel_requested:
        return ev.JobCancelled(tenant=job.tenant, job_id=job.job_id, end=end, reason=detail)
    if lost >= LOST_ATTEMPTS_MAX:
        return ev.JobFailed(
            tenant=job.tenant,
            job_id=job.job_id,
            end=end,
            reason="machine_lost",
            detail=f"machine lost: {lost} attempts were lost with their machines; {detail}",
        )
    return ev.AttemptLost(
        tenant=job.tenant,
        job_id=job.job_id,
        attempt=lease.attempt,
        token=lease.token,
        machine_id=lease.machine_id,
        started=started,
        detail=detail,
    )


# ---- reports of machines


def _registration(state: State, record: Input, report: cmd.MachineRegistered, grants: Grants) -> Answer:
    return Answer(_registration_fact(state, report))


def _registration_fact(state: State, report: cmd.MachineRegistered) -> Message:
    known = state.machines.get(report.machine_id)
    if known is not None and known.session == report.session and known.status != "lost":
        return _machine_report_ignored(report.machine_id, report.session, "registered", "repeated")
    proven = known is not None and known.boot_id == report.boot_id and known.session == report.previous_session
    return ev.MachineAdmitted(
        machine_id=report.machine_id,
        session=report.session,
        boot_id=report.boot_id,
        resources=report.resources,
        labels=report.labels,
        previous_session_gone=proven,
    )


def _presence(state: State, record: Input, report: cmd.MachinePresent, grants: Grants) -> Answer:
    return Answer(_presence_fact(state, report))


def _presence_fact(state: State, report: cmd.MachinePresent) -> Message | None:
    """A presence is observed; it is answered only where it tells that a lost machine is back, or is out of place."""
    known = state.machines.get(report.machine_id)
    if known is None:
        return _machine_report_ignored(report.machine_id, report.session, "present", "unknown_machine")
    if known.session != report.session:
        return _machine_report_ignored(report.machine_id, report.session, "present", "other_session")
    if known.status != "lost":
        return None
    return ev.MachineAdmitted(
        machine_id=known.machine_id,
        session=known.session,
        boot_id=known.boot_id,
        resources=Resources(cpu_millis=known.cpu_millis, memory_mib=known.memory_mib),
        labels=known.labels,
    )


def _departure(state: State, record: Input, report: cmd.MachineStopping | cmd.MachineGone, grants: Grants) -> Answer:
    return Answer(_departure_fact(state, report))


def _departure_fact(state: State, report: cmd.MachineStopping | cmd.MachineGone) -> Message:
    known = state.machines.get(report.machine_id)
    reported = "stopping" if isinstance(report, cmd.MachineStopping) else "gone"
    if known is None:
        return _machine_report_ignored(report.machine_id, report.session, reported, "unknown_machine")
    if known.session != report.session:
        return _machine_report_ignored(report.machine_id, report.session, reported, "other_session")
    if isinstance(report, cmd.MachineGone):
        if known.status == "left":
            return _machine_report_ignored(report.machine_id, report.session, reported, "repeated")
        return ev.MachineLeft(machine_id=report.machine_id, session=report.session)
    if known.status == "up":
        return ev.MachineDraining(machine_id=report.machine_id, session=report.session)
    return _machine_report_ignored(report.machine_id, report.session, reported, "repeated")


def _machine_report_ignored(machine_id: str, session: str, reported: str, code: str) -> ev.MachineReportIgnored:
    return ev.MachineReportIgnored(machine_id=machine_id, session=session, reported=reported, code=code)  # type: ignore[arg-type]


_NOTHING: Final = Answer()
# By type, not by `match`: an instance check of a pydantic model takes 1 µs, and there are several to each input.
_HANDLERS: Final[dict[type, Callable[[State, Input, Any, Grants], Answer]]] = {
    Fault: _unreadable,
    cmd.SubmitJob: _submission,
    cmd.CancelJob: _cancel,
    cmd.AttemptFinished: _report,
    cmd.AttemptRefused: _report,
    cmd.MachineRegistered: _registration,
    cmd.MachinePresent: _presence,
    cmd.MachineStopping: _departure,
    cmd.MachineGone: _departure,
}
