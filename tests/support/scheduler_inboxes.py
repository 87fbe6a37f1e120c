"""Every input partition of a cell as a list, with places and times as a broker would give them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jobstream.scheduler.inputs import Fault, Input
from jobstream.scheduler.state import Job, PartitionKey
from jobstream.schemas import commands as cmd
from jobstream.schemas.base import Message
from jobstream.schemas.resources import Resources
from jobstream.schemas.states import AttemptOutcome
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES, SUBMISSIONS, TICKED
from jobstream.topics.partitioning import partition_of

START_MS = 1_790_000_000_000
PARTITIONS = 4


def job_id(number: int, at_ms: int = START_MS) -> str:
    """A UUID of version 7 made at that time."""
    stamp = f"{at_ms:012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7000-8000-{number:012x}"


def spec(**fields: Any) -> cmd.JobSpec:
    """A job's spec: `cpu` in millicores, `memory` in MiB, the rest as it is."""
    resources = Resources(cpu_millis=fields.pop("cpu", 100), memory_mib=fields.pop("memory", 64))
    return cmd.JobSpec(**{"name": "job", "command": ("true",), "resources": resources, **fields})


@dataclass(slots=True)
class Inboxes:
    """Every input partition, and the broker's clock."""

    now_ms: int = START_MS
    places: dict[PartitionKey, list[Input]] = field(default_factory=dict)
    made: int = 0

    def put(self, topic: str, content: Message | Fault, *, partition: int | None = None) -> Input:
        """Append a record; its partition follows from its tenant or machine."""
        key = getattr(content, "tenant", None) or getattr(content, "machine_id", None)
        if partition is None:
            partition = partition_of(key or "", PARTITIONS)
        records = self.places.setdefault((topic, partition), [])
        self.made += 1
        record = Input(
            topic=topic,
            partition=partition,
            offset=len(records),
            appended_ms=self.now_ms,
            content=content,
            event_id=f"command-{self.made}",
            type_name=getattr(content, "TYPE", None),
            key=key.encode() if key else None,
            raw=b"{}",
        )
        records.append(record)
        return record

    def submit(
        self, tenant: str = "acme", id: str | None = None, topic: str = SUBMISSIONS.name, **fields: Any
    ) -> Input:
        self.made += 1
        key = fields.pop("idempotency_key", None)
        command = cmd.SubmitJob(
            tenant=tenant, job_id=id or job_id(self.made, self.now_ms), idempotency_key=key, spec=spec(**fields)
        )
        return self.put(topic, command)

    def cancel(self, tenant: str, id: str, topic: str = SUBMISSIONS.name) -> Input:
        return self.put(topic, cmd.CancelJob(tenant=tenant, job_id=id, reason="not needed"))

    def register(
        self,
        machine_id: str = "m1",
        session: str = "s1",
        cpu: int = 1_000,
        memory: int = 1_000,
        labels: dict[str, str] | None = None,
        previous: str | None = None,
        boot_id: str = "boot",
    ) -> Input:
        return self.put(
            MACHINES.name,
            cmd.MachineRegistered(
                machine_id=machine_id,
                session=session,
                boot_id=boot_id,
                resources=Resources(cpu_millis=cpu, memory_mib=memory),
                labels=labels or {},
                previous_session=previous,
            ),
        )

    def present(self, machine_id: str = "m1", session: str = "s1", number: int = 1) -> Input:
        return self.put(MACHINES.name, cmd.MachinePresent(machine_id=machine_id, session=session, number=number))

    def stopping(self, machine_id: str = "m1", session: str = "s1") -> Input:
        return self.put(MACHINES.name, cmd.MachineStopping(machine_id=machine_id, session=session))

    def gone(self, machine_id: str = "m1", session: str = "s1") -> Input:
        return self.put(MACHINES.name, cmd.MachineGone(machine_id=machine_id, session=session))

    def heartbeat(self, *jobs: Job, machine_id: str = "m1", session: str = "s1") -> Input:
        """One record for jobs of one tenant that hold leases."""
        held = [
            cmd.HeldLease(job_id=job.job_id, token=job.lease.token, started_at_ms=self.now_ms)
            for job in jobs
            if job.lease is not None
        ]
        return self.put(
            HEARTBEATS.name,
            cmd.LeaseHeartbeat(
                tenant=jobs[0].tenant, machine_id=machine_id, session=session, number=1, leases=tuple(held)
            ),
        )

    def finished(self, job: Job, outcome: AttemptOutcome = "succeeded", **changes: Any) -> Input:
        """A report on a job's open lease, but for `changes`."""
        report = cmd.AttemptFinished(
            **_lease_names(job),
            outcome=outcome,
            exit_code={"succeeded": 0, "failed": 3}.get(outcome),
            started_at_ms=self.now_ms,
            finished_at_ms=self.now_ms,
        )
        return self.put(COMPLETIONS.name, report.model_copy(update=changes))

    def refused(self, job: Job, **changes: Any) -> Input:
        report = cmd.AttemptRefused(**_lease_names(job), code="late")
        return self.put(COMPLETIONS.name, report.model_copy(update=changes))

    def tick(self, epoch: int, number: int, round_number: int, elapsed_ms: int, topics: Iterable[str] = ()) -> None:
        """A tick in every partition of the ticked inboxes, or of these."""
        tick = cmd.LeaderTick(epoch=epoch, number=number, round=round_number, elapsed_ms=elapsed_ms)
        for topic in topics or [topic.name for topic in TICKED]:
            for partition in range(PARTITIONS):
                self.put(topic, tick, partition=partition)

    def offset_at(self, place: PartitionKey, at_ms: int) -> int:
        """The first offset appended at that time or later."""
        records = self.places.get(place, [])
        return next((record.offset for record in records if record.appended_ms >= at_ms), len(records))


def _lease_names(job: Job) -> dict[str, Any]:
    assert job.lease is not None, f"job {job.job_id} has no lease to report on"
    return {
        "tenant": job.tenant,
        "job_id": job.job_id,
        "attempt": job.lease.attempt,
        "token": job.lease.token,
        "machine_id": job.lease.machine_id,
        "session": job.lease.session,
    }
