"""Commands, which may be refused, and what agents report: the untrusted inbox of the leader.

`SubmitJob` and `CancelJob` go to a `submissions` topic with the tenant as key. Agents write the rest.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator

from jobstream.schemas.base import INT64_MAX, Count, Message, Millis, Model
from jobstream.schemas.ids import IdempotencyKey, JobId, LabelText, MachineId, OpaqueId, Queue, Tenant
from jobstream.schemas.resources import Resources
from jobstream.schemas.states import AttemptOutcome, Priority

JOB_NAME_LENGTH_MAX: Final = 200
COMMAND_ARGUMENTS_MAX: Final = 1_000
COMMAND_BYTES_MAX: Final = 96 * 1024  # below the 128 KiB that Linux allows for one argument
ENV_ENTRIES_MAX: Final = 256
ENV_BYTES_MAX: Final = 64 * 1024
LABELS_MAX: Final = 32
TIMEOUT_MS_MAX: Final = 30 * 24 * 3600 * 1000  # 30 days
TEXT_LENGTH_MAX: Final = 2_000  # reasons and details that people read
HEARTBEAT_LEASES_MAX: Final = 5_000  # of one tenant on one machine; more are sent in several records

Text = Annotated[str, StringConstraints(strict=True, max_length=TEXT_LENGTH_MAX)]
JobName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=JOB_NAME_LENGTH_MAX)]
Argument = Annotated[str, StringConstraints(strict=True, max_length=COMMAND_BYTES_MAX)]
EnvName = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]
EnvValue = Annotated[str, StringConstraints(strict=True, max_length=ENV_BYTES_MAX)]


def _sorted(entries: Mapping[str, str]) -> Mapping[str, str]:
    """By name, so that a spec has one form however its author ordered it: its digest is that of its JSON."""
    return dict(sorted(entries.items()))


Labels = Annotated[Mapping[LabelText, LabelText], Field(max_length=LABELS_MAX), AfterValidator(_sorted)]
Env = Annotated[Mapping[EnvName, EnvValue], Field(max_length=ENV_ENTRIES_MAX), AfterValidator(_sorted)]
Command = (
    Annotated[tuple[Argument, ...], Field(min_length=1, max_length=COMMAND_ARGUMENTS_MAX)]
    | Annotated[Argument, StringConstraints(min_length=1)]
)
TimeoutMs = Annotated[int, Field(strict=True, ge=1, le=TIMEOUT_MS_MAX)]


class JobSpec(Model):
    """What a user asks for. A `command` that is a list is run as it is, one that is a string by `/bin/sh -c`.

    `labels` are the job's own; `required_labels` must all be on the machine.
    """

    name: JobName
    command: Command
    resources: Resources
    priority: Priority = "normal"
    queue: Queue = "default"
    timeout_ms: TimeoutMs | None = None
    env: Env = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)
    required_labels: Labels = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("has characters that cannot be printed")
        return name

    @field_validator("command")
    @classmethod
    def _command_fits(cls, command: tuple[str, ...] | str) -> tuple[str, ...] | str:
        size = len(command.encode()) if isinstance(command, str) else sum(len(part.encode()) + 1 for part in command)
        if size > COMMAND_BYTES_MAX:
            raise ValueError(f"has {size} bytes; {COMMAND_BYTES_MAX} at most")
        if not command[0]:
            raise ValueError("starts with an empty program name")
        return command

    @field_validator("env")
    @classmethod
    def _env_fits(cls, env: Mapping[str, str]) -> Mapping[str, str]:
        size = sum(len(name) + len(value.encode()) + 2 for name, value in env.items())
        if size > ENV_BYTES_MAX:
            raise ValueError(f"has {size} bytes; {ENV_BYTES_MAX} at most")
        return env


class SubmitJob(Message):
    """Ask for a job. With an idempotency key the job id must be the one derived from tenant and key."""

    TYPE: ClassVar[str] = "jobstream.job.submit.v1"
    tenant: Tenant
    job_id: JobId
    idempotency_key: IdempotencyKey | None = None
    spec: JobSpec


class CancelJob(Message):
    """Ask that a job ends without being completed. Of no effect on one that has ended."""

    TYPE: ClassVar[str] = "jobstream.job.cancel.v1"
    tenant: Tenant
    job_id: JobId
    reason: Text | None = None


class LeaseReport(Message):
    """What every report on an attempt names, so that a stale one can be told from a live one."""

    tenant: Tenant
    job_id: JobId
    attempt: Count
    token: Count
    machine_id: MachineId
    session: OpaqueId


class AttemptFinished(LeaseReport):
    """An attempt has ended and nothing of it lives any more. Times are the agent's wall clock, in ms since 1970."""

    TYPE: ClassVar[str] = "jobstream.attempt.finished.v1"
    outcome: AttemptOutcome
    exit_code: Annotated[int, Field(strict=True, ge=0, le=255)] | None = None
    signal: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None
    started_at_ms: Millis
    finished_at_ms: Millis
    detail: Text | None = None


class AttemptRefused(LeaseReport):
    """An agent did not start an attempt, and never will start this token."""

    TYPE: ClassVar[str] = "jobstream.attempt.refused.v1"
    code: Literal["late", "draining", "revoked", "cancelled", "no_room", "other_session", "broken"]
    detail: Text | None = None


class HeldLease(Model):
    """One lease in a heartbeat: its process has started and lives."""

    job_id: JobId
    token: Count
    started_at_ms: Millis


class LeaseHeartbeat(Message):
    """The started leases that a machine holds for one tenant, each a sign of life. Sent at each start and periodically."""

    TYPE: ClassVar[str] = "jobstream.lease.heartbeat.v1"
    tenant: Tenant
    machine_id: MachineId
    session: OpaqueId
    number: Count
    leases: Annotated[tuple[HeldLease, ...], Field(max_length=HEARTBEAT_LEASES_MAX)]


class MachineRegistered(Message):
    """A machine offers its capacity under a new session. Its offset orders sessions of one machine id.

    `previous_session` names the session that this one proves to be gone (same boot, its guardian has ended); else None.
    """

    TYPE: ClassVar[str] = "jobstream.machine.registered.v1"
    machine_id: MachineId
    session: OpaqueId
    boot_id: OpaqueId
    resources: Resources
    labels: Labels = Field(default_factory=dict)
    previous_session: OpaqueId | None = None


class MachinePresent(Message):
    """A numbered sign of a machine's presence; a dispatch names the newest one its round has read."""

    TYPE: ClassVar[str] = "jobstream.machine.present.v1"
    machine_id: MachineId
    session: OpaqueId
    number: Annotated[int, Field(strict=True, ge=1, le=INT64_MAX)]  # named by assignments, which take no more


class MachineStopping(Message):
    """A machine takes no more work and lets what runs finish."""

    TYPE: ClassVar[str] = "jobstream.machine.stopping.v1"
    machine_id: MachineId
    session: OpaqueId


class MachineGone(Message):
    """A machine's session has ended and nothing of it lives any more."""

    TYPE: ClassVar[str] = "jobstream.machine.gone.v1"
    machine_id: MachineId
    session: OpaqueId


class LeaderTick(Message):
    """The leader's clock in an inbox partition. `elapsed_ms` is monotonic time since the tick before; 0 in an epoch's first."""

    TYPE: ClassVar[str] = "jobstream.leader.tick.v1"
    epoch: Count
    number: Count
    round: Count
    elapsed_ms: Millis


INBOX_MESSAGES: Final[tuple[type[Message], ...]] = (
    SubmitJob,
    CancelJob,
    AttemptFinished,
    AttemptRefused,
    LeaseHeartbeat,
    MachineRegistered,
    MachinePresent,
    MachineStopping,
    MachineGone,
    LeaderTick,
)
