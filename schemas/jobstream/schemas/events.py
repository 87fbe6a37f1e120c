"""Facts: what the leader alone writes to `lifecycle`, `fleet` and `rounds`, and what follows into `dispatch`.

Every log record also carries a `Stamp` (see `envelope`). `at` is the stamp's time: `now` of its round.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from jobstream.schemas.base import Count, Message, Millis, Model
from jobstream.schemas.commands import JobSpec, Labels, Text
from jobstream.schemas.ids import IdempotencyKey, JobId, MachineId, OpaqueId, Tenant
from jobstream.schemas.resources import Resources
from jobstream.schemas.states import AttemptOutcome

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class JobEvent(Message):
    """A fact about one job of one tenant."""

    tenant: Tenant
    job_id: JobId


# ---- lifecycle: answers to commands. `command_id` is the `ce_id` of the command that is answered.


class JobAccepted(JobEvent):
    """The job exists and is queued. The spec is whole, so that the log alone tells the story."""

    TYPE: ClassVar[str] = "jobstream.job.accepted.v1"
    command_id: OpaqueId
    digest: Digest
    idempotency_key: IdempotencyKey | None = None
    spec: JobSpec


class JobRefused(JobEvent):
    """A submission that makes no job."""

    TYPE: ClassVar[str] = "jobstream.job.refused.v1"
    command_id: OpaqueId
    code: Literal["tenant_not_granted", "id_not_derived", "id_too_old", "id_from_future", "conflict", "quarantined"]
    detail: Text


class SubmissionRepeated(JobEvent):
    """A submission of a known id with the same body: a no-op."""

    TYPE: ClassVar[str] = "jobstream.job.submission_repeated.v1"
    command_id: OpaqueId


class CancelRequested(JobEvent):
    """A leased job is to be cancelled: its agent is told, and its report or the expiry of its lease ends it."""

    TYPE: ClassVar[str] = "jobstream.job.cancel_requested.v1"
    command_id: OpaqueId
    reason: Text | None = None


class CancelIgnored(JobEvent):
    """A cancel without effect: the job is unknown, has ended, or is being cancelled already."""

    TYPE: ClassVar[str] = "jobstream.job.cancel_ignored.v1"
    command_id: OpaqueId
    code: Literal["unknown_job", "ended", "already_requested", "tenant_not_granted"]
    detail: Text


# ---- lifecycle: attempts


class AttemptEvent(JobEvent):
    """A fact about one attempt, under its fencing token."""

    attempt: Annotated[int, Field(ge=1)]
    token: Count


class JobAssigned(AttemptEvent):
    """A lease is opened: the attempt may run on this machine, in this session, if it starts in time of `presence`."""

    TYPE: ClassVar[str] = "jobstream.job.assigned.v1"
    machine_id: MachineId
    session: OpaqueId
    presence: Count


class JobStarted(AttemptEvent):
    """The first sign of life of the attempt has been read. `started_at_ms` is the agent's clock; `seen_at_ms` the broker's."""

    TYPE: ClassVar[str] = "jobstream.job.started.v1"
    started_at_ms: Millis
    seen_at_ms: Millis


class AssignmentRefused(AttemptEvent):
    """The agent did not start the attempt: the job is queued again and the attempt's number is given back."""

    TYPE: ClassVar[str] = "jobstream.job.assignment_refused.v1"
    machine_id: MachineId
    code: str
    detail: Text | None = None


class AttemptLost(AttemptEvent):
    """The lease has expired, or the agent lost the attempt: the job is queued again."""

    TYPE: ClassVar[str] = "jobstream.attempt.lost.v1"
    machine_id: MachineId
    started: bool
    detail: Text


class AttemptEnd(Model):
    """How an attempt ended. Times are ms since 1970; `exit_code` or `signal` where a process ended."""

    attempt: Annotated[int, Field(ge=1)]
    token: Count
    machine_id: MachineId
    outcome: AttemptOutcome
    exit_code: int | None = None
    signal: int | None = None
    started_at_ms: Millis | None = None
    finished_at_ms: Millis | None = None
    detail: Text | None = None


class ReportIgnored(JobEvent):
    """A report whose token, machine or session is not the lease's: kept as evidence, of no effect."""

    TYPE: ClassVar[str] = "jobstream.attempt.report_ignored.v1"
    attempt: Count
    token: Count
    machine_id: MachineId
    session: OpaqueId
    reported: Text
    code: Literal["stale_token", "other_machine", "other_session", "no_lease"]


# ---- lifecycle: the one terminal event of a run. `end` is its last attempt, where there was one.


class JobCompleted(JobEvent):
    TYPE: ClassVar[str] = "jobstream.job.completed.v1"
    end: AttemptEnd


class JobFailed(JobEvent):
    TYPE: ClassVar[str] = "jobstream.job.failed.v1"
    end: AttemptEnd | None = None
    reason: Literal["exit", "timed_out", "machine_lost", "not_started", "quarantined"]
    detail: Text


class JobCancelled(JobEvent):
    """`command_id` where the cancel itself ended the job (it held no lease)."""

    TYPE: ClassVar[str] = "jobstream.job.cancelled.v1"
    end: AttemptEnd | None = None
    command_id: OpaqueId | None = None
    reason: Text | None = None


# ---- fleet: keyed by machine


class MachineEvent(Message):
    machine_id: MachineId
    session: OpaqueId


class MachineAdmitted(MachineEvent):
    """This session is the machine's newest: it may be given work."""

    TYPE: ClassVar[str] = "jobstream.machine.admitted.v1"
    boot_id: OpaqueId
    resources: Resources
    labels: Labels = Field(default_factory=dict)
    previous_session_gone: bool = False


class MachineDraining(MachineEvent):
    TYPE: ClassVar[str] = "jobstream.machine.draining.v1"


class MachineLeft(MachineEvent):
    TYPE: ClassVar[str] = "jobstream.machine.left.v1"


class MachineLost(MachineEvent):
    """No sign of presence for longer than the lease's time to live and the grace."""

    TYPE: ClassVar[str] = "jobstream.machine.lost.v1"


class MachineReportIgnored(MachineEvent):
    """A report of a session that is not the machine's newest, or of an unknown machine."""

    TYPE: ClassVar[str] = "jobstream.machine.report_ignored.v1"
    reported: Text
    code: Literal["unknown_machine", "other_session", "repeated"]


# ---- rounds: the leader's journal, one record a round

TopicPartitions = Mapping[str, Mapping[int, Count]]  # topic without prefix → partition → a number
Ranges = Mapping[str, Mapping[int, tuple[Count, Count]]]
Offsets = Mapping[str, Mapping[int, tuple[Count, ...]]]


class EpochStart(Model):
    """What an epoch's first round adds. `log_sequences` are the next sequence numbers of every log partition as read."""

    configuration: Mapping[str, int | str]
    failover: bool
    log_sequences: TopicPartitions
    gaps: Ranges = Field(default_factory=dict)


class RoundCommitted(Message):
    """A round. `inputs` gives [first, next) offsets of the partitions that moved, `written` [first, next) sequence
    numbers of its records in each log partition: a round of which one of them is not visible is torn.

    `digest` is of the state after the round, as this `core_version` of decide and evolve makes it; `positions` (next
    offsets of every input partition) come now and then.
    With them come in `answered` the offsets at or beyond them whose inputs a torn round has answered already.
    The ids of jobs that ended before `forget_before_ms` need not be known any more: no submission still unread can name one.
    """

    TYPE: ClassVar[str] = "jobstream.round.committed.v1"
    cell: str
    round: Count
    epoch: Count
    now_ms: Millis
    inputs: Ranges
    written: Ranges
    core_version: str
    digest: Count
    forget_before_ms: Millis = 0
    positions: TopicPartitions | None = None
    answered: Offsets = Field(default_factory=dict)
    epoch_start: EpochStart | None = None


# ---- dispatch: to one machine's mailbox, after the round has committed


class Dispatch(Message):
    machine_id: MachineId
    session: OpaqueId
    tenant: Tenant
    job_id: JobId
    attempt: Annotated[int, Field(ge=1)]
    token: Count


class AssignAttempt(Dispatch):
    """Start this attempt, if that is still within the time to live less the margin of having begun to send `presence`."""

    TYPE: ClassVar[str] = "jobstream.dispatch.assign.v1"
    presence: Count
    spec: JobSpec


class CancelAttempt(Dispatch):
    """End the attempt (terminate, grace, kill) and report it as cancelled; never start this token."""

    TYPE: ClassVar[str] = "jobstream.dispatch.cancel.v1"


class RevokeAttempt(Dispatch):
    """The lease is not this machine's any more: kill at once what lives of it; never start this token."""

    TYPE: ClassVar[str] = "jobstream.dispatch.revoke.v1"


class DeadLetter(Message):
    """A record that could not be read. `value_base64` is at most its first 64 KiB."""

    TYPE: ClassVar[str] = "jobstream.dead_letter.v1"
    topic: str
    partition: Count
    offset: int
    reason: str
    detail: str
    type: str | None = None
    value_size: Count
    key_base64: str | None = None
    value_base64: str | None = None


LIFECYCLE_EVENTS: Final[tuple[type[JobEvent], ...]] = (
    JobAccepted,
    JobRefused,
    SubmissionRepeated,
    CancelRequested,
    CancelIgnored,
    JobAssigned,
    JobStarted,
    AssignmentRefused,
    AttemptLost,
    ReportIgnored,
    JobCompleted,
    JobFailed,
    JobCancelled,
)
FLEET_EVENTS: Final[tuple[type[MachineEvent], ...]] = (
    MachineAdmitted,
    MachineDraining,
    MachineLeft,
    MachineLost,
    MachineReportIgnored,
)
DISPATCHES: Final[tuple[type[Dispatch], ...]] = (AssignAttempt, CancelAttempt, RevokeAttempt)
