"""A log as a leader would write it: random, but each event follows from those before. For readers of the log to be tested by."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import digest_of, encode
from jobstream.schemas.commands import JobSpec
from jobstream.schemas.envelope import Envelope, Stamp, fencing_token, format_time, to_headers
from jobstream.schemas.ids import derive_job_id
from jobstream.schemas.resources import Resources
from jobstream.topics.partitioning import partition_of

START_MS = 1_790_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record of the log; `topic` without prefix."""

    topic: str
    partition: int
    key: str
    event: Message
    stamp: Stamp

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """As a reader gets them."""
        stamp = self.stamp
        envelope = Envelope(
            id=f"r{stamp.round}.{stamp.index}",
            type=self.event.TYPE,
            source="jobstream/leader/cell-0",
            time=format_time(stamp.at_ms),
            stamp=stamp,
        )
        return [(name, value) for name, value in to_headers(envelope) if isinstance(value, bytes)]

    @property
    def value(self) -> bytes:
        return encode(self.event)


@dataclass(slots=True)
class _Job:
    tenant: str
    job_id: str
    attempt: int = 0
    token: int = 0
    machine_id: str = ""
    status: str = "queued"
    cancelling: bool = False


@dataclass(slots=True)
class LeaderLog:
    """Makes rounds of entries. The same seed makes the same log."""

    seed: int
    partitions: int
    tenants: int = 4
    jobs_max: int = 40  # alive at once
    round: int = 0
    _random: random.Random = field(init=False)
    _sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    _jobs: list[_Job] = field(default_factory=list)
    _machines: dict[str, str] = field(default_factory=dict)  # machine → session
    _made: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def rounds(self, count: int) -> Iterator[list[Entry]]:
        """So many rounds; each is what one transaction writes."""
        for _ in range(count):
            self.round += 1
            events = [event for _ in range(self._random.randint(1, 12)) for event in self._step()]
            yield [self.entry(event, index) for index, event in enumerate(events)]

    def entries(self, rounds: int) -> list[Entry]:
        return [entry for made in self.rounds(rounds) for entry in made]

    def entry(self, event: Message, index: int = 0) -> Entry:
        """The next record of its partition."""
        topic = "fleet" if isinstance(event, ev.MachineEvent) else "lifecycle"
        key: str = event.machine_id if isinstance(event, ev.MachineEvent) else event.tenant  # type: ignore[attr-defined]
        partition = partition_of(key, self.partitions)
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = sequence + 1
        stamp = Stamp(
            sequence=sequence,
            epoch=1 + self.round // 50,
            round=self.round,
            index=index,
            cause="state",
            at_ms=self._now,
        )
        return Entry(topic=topic, partition=partition, key=key, event=event, stamp=stamp)

    @property
    def _now(self) -> int:
        return START_MS + self.round * 137

    def _step(self) -> list[Message]:
        choose = self._random
        if not self._machines or choose.random() < 0.05:
            return [self._machine()]
        if choose.random() < 0.04:
            return [self._answer()]
        if not self._jobs or (len(self._jobs) < self.jobs_max and choose.random() < 0.3):
            return [self._accept()]
        job = choose.choice(self._jobs)
        if choose.random() < 0.05:
            return [self._stale(job)]
        return [self._advance(job)]

    def _accept(self) -> Message:
        self._made += 1
        tenant = f"tenant-{self._random.randrange(self.tenants)}"
        key = f"{self.seed}-{self._made}"
        job = _Job(tenant, derive_job_id(tenant, key))
        self._jobs.append(job)
        return accepted(tenant, job.job_id, key, self._made)

    def _advance(self, job: _Job) -> Message:
        choose = self._random
        names: dict[str, Any] = {"tenant": job.tenant, "job_id": job.job_id}
        if job.status == "queued":
            if choose.random() < 0.05:
                self._jobs.remove(job)
                return ev.JobCancelled(**names, command_id="c-1", reason=choose.choice([None, "not needed"]))
            if choose.random() < 0.03:
                self._jobs.remove(job)
                return ev.JobFailed(**names, reason="not_started", detail="nobody would start it")
            return self._assign(job)
        lease: dict[str, Any] = {**names, "attempt": job.attempt, "token": job.token}
        dice = choose.random()
        if not job.cancelling and dice < 0.05:
            job.cancelling = True
            return ev.CancelRequested(**names, command_id="c-2", reason=choose.choice([None, "wrong input"]))
        if job.status == "assigned" and dice < 0.15:
            job.status, job.attempt = "queued", job.attempt - 1
            return ev.AssignmentRefused(**lease, machine_id=job.machine_id, code="late")
        if job.status == "assigned" and dice < 0.85:
            job.status = "running"
            return ev.JobStarted(**lease, started_at_ms=self._now + 5, seen_at_ms=self._now - 20)
        if dice < 0.25:
            started, job.status = job.status == "running", "queued"
            return ev.AttemptLost(**lease, machine_id=job.machine_id, started=started, detail="the lease expired")
        self._jobs.remove(job)
        return self._end(job)

    def _assign(self, job: _Job) -> Message:
        self._made += 1
        job.status, job.attempt = "assigned", job.attempt + 1
        job.token = fencing_token(self.round, self._made)
        job.machine_id = self._random.choice(sorted(self._machines))
        return ev.JobAssigned(
            tenant=job.tenant,
            job_id=job.job_id,
            attempt=job.attempt,
            token=job.token,
            machine_id=job.machine_id,
            session=self._machines[job.machine_id],
            presence=self.round,
        )

    def _end(self, job: _Job) -> Message:
        names: dict[str, Any] = {"tenant": job.tenant, "job_id": job.job_id}
        end: dict[str, Any] = {"attempt": job.attempt, "token": job.token, "machine_id": job.machine_id}
        times: dict[str, Any] = {"started_at_ms": self._now - 90, "finished_at_ms": self._now - 10}
        dice = self._random.random()
        if job.cancelling and dice < 0.7:
            return ev.JobCancelled(
                **names, end=ev.AttemptEnd(**end, outcome="cancelled", signal=15, detail="asked for", **times)
            )
        if dice < 0.6:
            return ev.JobCompleted(**names, end=ev.AttemptEnd(**end, outcome="succeeded", exit_code=0, **times))
        if dice < 0.8:
            return ev.JobFailed(
                **names,
                end=ev.AttemptEnd(**end, outcome="failed", exit_code=3, detail="exit 3", **times),
                reason="exit",
                detail="the process ended with 3",
            )
        if dice < 0.9:
            return ev.JobFailed(**names, reason="quarantined", detail="its record could not be decided on")
        return ev.JobFailed(
            **names, end=ev.AttemptEnd(**end, outcome="lost"), reason="machine_lost", detail="the fifth time"
        )

    def _stale(self, job: _Job) -> Message:
        return ev.ReportIgnored(
            tenant=job.tenant,
            job_id=job.job_id,
            attempt=self._random.choice([job.attempt, job.attempt + 1, 0]),
            token=max(0, job.token - 1),
            machine_id="m-0",
            session="old",
            reported="attempt.finished succeeded",
            code="stale_token",
        )

    def _answer(self) -> Message:
        self._made += 1
        tenant = f"tenant-{self._random.randrange(self.tenants)}"
        names = {
            "tenant": tenant,
            "job_id": derive_job_id(tenant, "refused"),
            "command_id": f"x-{self._random.randrange(20)}",
        }
        return self._random.choice(
            [
                ev.SubmissionRepeated(**names),
                ev.JobRefused(**names, code="conflict", detail="another body"),
                ev.CancelIgnored(**names, code="ended", detail="it has ended"),
            ]
        )

    def _machine(self) -> Message:
        machine_id = f"m-{self._random.randrange(6)}"
        session = self._machines.get(machine_id)
        dice = self._random.random()
        if session is None or dice < 0.3:
            self._made += 1
            session = self._machines[machine_id] = f"s-{self._made}"
            return ev.MachineAdmitted(
                machine_id=machine_id,
                session=session,
                boot_id=f"boot-{self._made}",
                resources=Resources(cpu_millis=4_000, memory_mib=self._made),
                labels={"zone": "a"},
            )
        names = {"machine_id": machine_id, "session": session}
        if dice < 0.5:
            return ev.MachineDraining(**names)
        if dice < 0.6:
            return ev.MachineReportIgnored(**names, reported="machine.present", code="repeated")
        del self._machines[machine_id]
        return ev.MachineLeft(**names) if dice < 0.8 else ev.MachineLost(**names)


def accepted(tenant: str, job_id: str, key: str | None = None, number: int = 1) -> ev.JobAccepted:
    """An accepted job with texts that are hard to quote."""
    spec = JobSpec(
        name=f"job {number}",
        command=("/bin/echo", "a'b\"c\\d\ne\tf", "{é,NULL}", "\x01"),
        resources=Resources(cpu_millis=100 + number % 900, memory_mib=64),
        priority=("critical", "high", "normal", "low")[number % 4],
        queue=f"queue-{number % 3}",
        env={"KEY": "value 🚀"},
    )
    return ev.JobAccepted(
        tenant=tenant,
        job_id=job_id,
        command_id=f"command-{number}",
        digest=digest_of(spec),
        idempotency_key=key,
        spec=spec,
    )


def admitted(machine_id: str, session: str = "s") -> ev.MachineAdmitted:
    resources = Resources(cpu_millis=1_000, memory_mib=1_024)
    return ev.MachineAdmitted(machine_id=machine_id, session=session, boot_id="boot", resources=resources)
