"""Row operations of a batch: what the columns of a job, an attempt, a machine become. Pure.

None leaves a column as it is, except for the groups that a flag replaces whole (`lease`, `started`). Times are ms since
1970, by the broker's clock. What cannot follow from the operations before it raises LogBroken; what only the stored row
can tell is checked as the row is written.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson

from jobstream.runtime.errors import LogBroken
from jobstream.schemas import events as ev

JobKey = tuple[str, str]  # tenant, job id
AttemptKey = tuple[str, str, int]  # tenant, job id, number of the attempt


@dataclass(slots=True, kw_only=True)
class JobChange:
    """An update of a job's row, which must exist unless `required` is false.

    `expected_token` is of the lease that the row must hold before. `lost_attempts` is added. `lease`: machine, session,
    token and presence are replaced; `started`: started_at is. `started_fallback` counts where nothing else is known.
    """

    tenant: str
    job_id: str
    first_offset: int
    last_offset: int
    required: bool = True
    expected_token: int | None = None
    status: str | None = None
    attempt: int | None = None
    lost_attempts: int = 0
    cancel_requested: bool = False
    lease: bool = False
    machine_id: str | None = None
    session: str | None = None
    token: int | None = None
    presence: int | None = None
    started: bool = False
    started_at: int | None = None
    started_fallback: int | None = None
    ended_at: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    detail: str | None = None

    def follow(self, token: int) -> None:
        """The event is about the open lease: check what the batch knows of it, and what the row must hold."""
        if self.lease:
            if self.token != token:
                raise LogBroken(f"job {self.job_id} of tenant {self.tenant} has no open lease with token {token}")
        elif self.expected_token is None:
            self.expected_token = token

    def hold(self, machine_id: str | None, session: str | None, token: int | None, presence: int | None) -> None:
        self.lease = True
        self.machine_id, self.session, self.token, self.presence = machine_id, session, token, presence


@dataclass(slots=True, kw_only=True)
class NewJob(JobChange):
    """A job's first row. `spec` is JSON."""

    name: str
    queue: str
    priority: int
    spec: orjson.Fragment
    digest: str
    idempotency_key: str | None
    created_at: int
    accepted: int
    log_partition: int


@dataclass(slots=True, kw_only=True)
class AttemptChange:
    """An update of the attempt that has this token."""

    tenant: str
    job_id: str
    attempt: int
    token: int
    started_at: int | None = None
    started_fallback: int | None = None
    ended_at: int | None = None
    outcome: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    detail: str | None = None


@dataclass(slots=True, kw_only=True)
class NewAttempt(AttemptChange):
    machine_id: str
    session: str
    assigned_at: int


@dataclass(slots=True, kw_only=True)
class MachineChange:
    """An update of a machine's row, which must be of this session."""

    machine_id: str
    session: str
    last_offset: int
    status: str
    changed_at: int


@dataclass(slots=True, kw_only=True)
class NewMachine(MachineChange):
    """A machine's row, whether there was one or not."""

    boot_id: str
    cpu_millis: int
    memory_mib: int
    labels: dict[str, str]
    admitted_at: int


@dataclass(slots=True, kw_only=True)
class Refusal:
    tenant: str
    command_id: str
    job_id: str
    code: str
    detail: str
    refused_at: int


@dataclass(slots=True)
class Changes:
    """What a run of events of one partition does to the rows.

    Applied in this order: `removed` (attempt → token), new rows, updates, `evidence`, `closed` (job → ended_at, outcome:
    what is still open of an attempt when its job has ended without one).
    """

    jobs: dict[JobKey, JobChange] = field(default_factory=dict)
    removed: dict[AttemptKey, int] = field(default_factory=dict)
    attempts: dict[AttemptKey, AttemptChange] = field(default_factory=dict)
    evidence: dict[AttemptKey, list[dict[str, Any]]] = field(default_factory=dict)
    closed: dict[JobKey, tuple[int, str]] = field(default_factory=dict)
    machines: dict[str, MachineChange] = field(default_factory=dict)
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)

    def job(self, event: ev.JobEvent, offset: int) -> JobChange:
        key = (event.tenant, event.job_id)
        change = self.jobs.get(key)
        if change is None:
            change = JobChange(tenant=event.tenant, job_id=event.job_id, first_offset=offset, last_offset=offset)
            self.jobs[key] = change
        elif change.ended_at is not None:
            raise LogBroken(f"{event.TYPE} follows the end of job {event.job_id} of tenant {event.tenant}")
        else:
            change.last_offset, change.required = offset, True
        return change

    def attempt(self, event: ev.JobEvent, number: int, token: int) -> AttemptChange:
        key = (event.tenant, event.job_id, number)
        change = self.attempts.get(key)
        if change is None:
            change = AttemptChange(tenant=event.tenant, job_id=event.job_id, attempt=number, token=token)
            self.attempts[key] = change
        elif change.token != token:
            raise LogBroken(
                f"attempt {number} of job {event.job_id} of tenant {event.tenant} has not the token {token}"
            )
        return change
