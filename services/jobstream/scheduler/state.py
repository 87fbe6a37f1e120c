"""What the leader holds: jobs, machines, positions. `evolve` alone changes the part that the log carries.

The soft part (ages, presences, rotations) comes from inputs, is dropped at every takeover, and is never in the log.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from jobstream.scheduler.backlog import Backlog
from jobstream.scheduler.fleet import FleetIndex
from jobstream.scheduler.leases import Soft
from jobstream.scheduler.memory import Memory
from jobstream.schemas.states import JobStatus, MachineStatus
from jobstream.topics.partitioning import partition_of

DIGEST_MASK: Final = 2**61 - 1
LOST_ATTEMPTS_MAX: Final = 5  # started attempts lost with their machine, before the job fails

JobKey = tuple[str, str]  # tenant, job id
Labels = tuple[tuple[str, str], ...]
PartitionKey = tuple[str, int]  # topic without prefix, partition

_NO_LEASES: Final[Mapping[int, JobKey]] = {}
_MASK_64: Final = 2**64 - 1
_MIX: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # odd and without pattern: from splitmix64
_STATUS_CODE: Final[dict[JobStatus, int]] = {"waiting": 1, "queued": 2, "assigned": 3, "running": 4, "blocked": 5}


@dataclass(slots=True, kw_only=True)
class Lease:
    """The time-limited right to one attempt. `seen` is soft: (started_at_ms, append time) of its first sign of life."""

    token: int
    attempt: int
    machine_id: str
    session: str
    presence: int
    started: bool = False
    seen: tuple[int, int] | None = None


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that has not ended. `accepted` orders jobs by arrival; `spec_json` is its JobSpec as JSON."""

    tenant: str
    job_id: str
    queue: str
    priority: int
    cpu_millis: int
    memory_mib: int
    required_labels: Labels
    digest: str
    spec_json: bytes
    accepted: int
    status: JobStatus = "queued"
    attempt: int = 0
    lost_attempts: int = 0
    cancel_requested: bool = False
    lease: Lease | None = None
    counted: int = 0  # its share of the digest as it stands there

    @property
    def key(self) -> JobKey:
        return self.tenant, self.job_id

    def fingerprint(self) -> int:
        """Its share of the state's digest: a sum over jobs, so that one job's change costs one job's work.

        Mixed by a shift between multiplications: else what two jobs swap (a lease) would leave the sum as it was.
        """
        token = self.lease.token if self.lease is not None else 0
        small = _STATUS_CODE[self.status] + 8 * self.cancel_requested + 16 * self.lost_attempts + 256 * self.attempt
        mixed = (int(self.job_id[-12:], 16) + small * _MIX[0]) * _MIX[1] + token * _MIX[2] & _MASK_64
        return (mixed ^ mixed >> 29) * _MIX[1] & DIGEST_MASK


@dataclass(slots=True, kw_only=True)
class Machine:
    """A machine's newest session. `slot` is its place in the fleet index; presence and `suspect` are soft."""

    machine_id: str
    session: str
    boot_id: str
    cpu_millis: int
    memory_mib: int
    labels: dict[str, str]
    status: MachineStatus
    slot: int = -1
    lost_at_ms: int = 0
    gone_session: str | None = None  # soft: proven to be gone with all it ran
    presence: int = 0  # soft: the newest number read; 0 before the first


@dataclass(slots=True)
class State:
    """Everything that one cell's leader knows. `partitions` is the count of every topic keyed by tenant or machine."""

    partitions: int
    jobs: dict[JobKey, Job] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    machines: dict[str, Machine] = field(default_factory=dict)
    # Machine → token → job of every open lease, of all its sessions: they hold resources. The machine may be unknown.
    leases: dict[str, dict[int, JobKey]] = field(default_factory=dict)
    lost: OrderedDict[str, int] = field(default_factory=OrderedDict)  # machines that are lost → since when
    backlog: Backlog = field(default_factory=Backlog)
    fleet: FleetIndex = field(default_factory=FleetIndex)
    next_sequence: dict[PartitionKey, int] = field(default_factory=dict)
    positions: dict[PartitionKey, int] = field(default_factory=dict)  # next offsets of the inputs, after the last round
    answered: frozenset[str] = frozenset()  # causes beyond `positions` that a torn round has answered: see `takeover`
    round: int = 0
    epoch: int = 0
    now_ms: int = 0
    digest: int = 0
    soft: Soft = field(default_factory=Soft)

    def leases_of(self, machine_id: str) -> Mapping[int, JobKey]:
        """The open leases on a machine: token → job."""
        return self.leases.get(machine_id, _NO_LEASES)

    def partition_of(self, key: str) -> int:
        """The partition of a tenant or machine: the same number in the log as in the inboxes."""
        return partition_of(key, self.partitions)
