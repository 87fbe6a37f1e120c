"""A cell without Kafka: inboxes and a log as lists, a leader as the pure core. For tests of the core alone.

`Inboxes` gives records places and times as a broker would, `Log` shows of a round what a torn commit would show, `Leader`
takes over and makes rounds as the real one does, in terms of offsets.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobstream.scheduler import invariants
from jobstream.scheduler.evolve import evolve, evolve_round
from jobstream.scheduler.inputs import Fault, Input, base_topic
from jobstream.scheduler.leases import LeaseTimes
from jobstream.scheduler.rounds import LogRecord, Round, Rules, Suspects, lease_dispatch, run_round
from jobstream.scheduler.state import Job, PartitionKey, State
from jobstream.scheduler.takeover import Tail, raise_barrier, resume_after, take_over
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import decode
from jobstream.schemas.envelope import TOKEN_INDEX_BITS
from jobstream.schemas.resources import Resources
from jobstream.schemas.states import LEASED, TRANSITIONS, AttemptOutcome, JobStatus
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES, SUBMISSIONS, TICKED
from jobstream.topics.partitioning import partition_of

START_MS = 1_790_000_000_000
PARTITIONS = 4
TIMES = LeaseTimes(ttl_ms=90_000, margin_ms=15_000, grace_ms=10_000)
RULES = Rules(cell="cell-0", lease=TIMES, grants={"billing": frozenset({"acme"})})
REREAD_MS = TIMES.expires_after_ms + 60_000  # as the leader does it


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


@dataclass(slots=True)
class Log:
    """What readers can see of the log. `followed` says in which order a follower reads the partitions."""

    places: dict[PartitionKey, list[LogRecord]] = field(default_factory=dict)
    rounds: list[ev.RoundCommitted] = field(default_factory=list)

    def commit(self, made: Round, *, show: Callable[[LogRecord], bool] = lambda _: True, whole: bool = True) -> None:
        """Make a round visible; a torn one shows what `show` picks, and its record where `whole`."""
        for record in made.records:
            if show(record):
                self.places.setdefault((record.topic, record.partition), []).append(record)
        if whole:
            assert made.record is not None
            self.rounds.append(made.record)

    def follow(
        self, state: State, tail: Tail, order: random.Random | None = None, below: dict[PartitionKey, int] | None = None
    ) -> None:
        """Evolve a state that has read nothing, as a follower does: its partitions in any order, each in its own.

        `below`: only so many records of each partition, and no rounds; go on with what is left by another call.
        """
        left = {
            place: records[state.next_sequence.get(place, 0) : None if below is None else below.get(place, 0)]
            for place, records in self.places.items()
        }
        rounds = list(self.rounds) if below is None else []
        while rounds or any(left.values()):
            open_places = [place for place, records in left.items() if records]
            turns: list[PartitionKey | None] = [*open_places, *([None] if rounds else [])]
            place = turns[0] if order is None else order.choice(turns)
            if place is None:
                record = rounds.pop(0)
                tail.saw_round(record, state.positions)
                evolve_round(state, record)
                continue
            fact = left[place].pop(0)
            assert fact.stamp.sequence == state.next_sequence.get(place, 0), f"{place}: a gap or a repeat"
            evolve(state, decode(fact.event.TYPE, fact.value), fact.stamp)
            state.next_sequence[place] = fact.stamp.sequence + 1
            tail.saw_fact(place, fact.stamp)

    def load(self, state: State, tail: Tail) -> None:
        """Have all facts as from a projection that is not behind: of each partition the newest round is read once more,
        of `rounds` what follows the newest record that names every position."""
        state.next_sequence = {}
        for place, records in self.places.items():
            for fact in records:
                evolve(state, decode(fact.event.TYPE, fact.value), fact.stamp)
            state.next_sequence[place] = len(records)
        whole = [number for number, record in enumerate(self.rounds) if record.positions is not None]
        for record in self.rounds[whole[-1] if whole else 0 :]:
            tail.saw_round(record, state.positions)
            evolve_round(state, record)
        for place, records in self.places.items():
            for fact in records:
                if fact.stamp.round == records[-1].stamp.round:
                    tail.saw_fact(place, fact.stamp)

    def records(self) -> list[LogRecord]:
        """All facts that are visible, in the order in which they were decided."""
        found = [record for records in self.places.values() for record in records]
        return sorted(found, key=lambda record: (record.stamp.round, record.stamp.index))

    def events(self) -> list[Message]:
        return [record.event for record in self.records()]


@dataclass(slots=True)
class Leader:
    """One epoch of a leader over `inboxes`, writing to `log`."""

    inboxes: Inboxes
    log: Log
    state: State = field(default_factory=lambda: State(partitions=PARTITIONS))
    tail: Tail = field(default_factory=Tail)
    rules: Rules = RULES
    read: dict[PartitionKey, int] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    ticks: int = 0
    ticked_ms: int = 0
    suspects: Suspects = field(default_factory=Suspects)

    @classmethod
    def elected(cls, inboxes: Inboxes, log: Log, order: random.Random | None = None) -> "Leader":
        """Read the log, take over, and commit the epoch's first round."""
        leader = cls(inboxes, log)
        log.follow(leader.state, leader.tail, order)
        leader.take_over()
        leader.log.commit(leader.first_round())
        return leader

    def take_over(self) -> None:
        self.answered = resume_after(self.state, self.tail)
        take_over(self.state)
        for place in self.inboxes.places:
            self.read[place] = self.start_of(place)
        ends = {place: len(records) for place, records in self.inboxes.places.items()}
        raise_barrier(
            self.state, {place: end for place, end in ends.items() if base_topic(place[0]) == SUBMISSIONS.name}
        )
        self.state.soft.read.update(self.read)
        invariants.check(self.state, torn=True)

    def start_of(self, place: PartitionKey) -> int:
        wanted = self.state.positions.setdefault(place, 0)
        if place[0] in (HEARTBEATS.name, MACHINES.name):
            return min(wanted, self.inboxes.offset_at(place, self.state.now_ms - REREAD_MS))
        return wanted

    def first_round(self) -> Round:
        self.state.epoch += 1
        start = ev.EpochStart(configuration={}, failover=True, log_sequences={})
        return self.decide([], start)

    def decide(self, inputs: Sequence[Input], epoch_start: ev.EpochStart | None = None) -> Round:
        made = run_round(
            self.state,
            inputs,
            self.inboxes.now_ms,
            self.rules,
            suspects=self.suspects,
            answered=self.answered,
            epoch_start=epoch_start,
        )
        invariants.check(self.state)
        return made

    def take(self, most: int | None = None) -> list[Input]:
        """Unread inputs, at most so many of each partition."""
        taken = []
        for place, records in self.inboxes.places.items():
            at = self.read.get(place, 0)
            new = records[at : None if most is None else at + most]
            taken += new
            self.read[place] = at + len(new)
        return taken

    def round(self, most: int | None = None) -> Round:
        """Decide on what is unread, and commit."""
        made = self.decide(self.take(most))
        self.log.commit(made)
        return made

    def tick(self, after_ms: int = 1_000, topics: Iterable[str] = (), elapsed_ms: int | None = None) -> None:
        """Let time pass and append a tick, which says that as much went by (or `elapsed_ms`)."""
        self.inboxes.now_ms += after_ms
        self.ticks += 1
        elapsed = after_ms if elapsed_ms is None else elapsed_ms
        self.inboxes.tick(self.state.epoch, self.ticks, self.state.round, elapsed if self.ticks > 1 else 0, topics)

    def pass_time(self, ms: int) -> None:
        """Ticks and rounds of a second for so long."""
        for _ in range(ms // 1_000):
            self.tick()
            self.round()

    def job(self, submission: Input) -> Job:
        command = submission.content
        assert isinstance(command, cmd.SubmitJob)
        return self.state.jobs[command.tenant, command.job_id]

    def unheard(self) -> list[tuple[str, str, bytes]]:
        """What a takeover sends again."""
        jobs = [job for job in self.state.jobs.values() if job.lease is not None]
        again = [job for job in jobs if job.cancel_requested or (job.lease is not None and not job.lease.started)]
        return [dispatch for job in again if (dispatch := lease_dispatch(job)) is not None]


def new_cell() -> Leader:
    """An empty cell and its first leader."""
    return Leader.elected(Inboxes(), Log())


def only(made: Round, kind: type[Message]) -> Any:
    """The one event of a kind in a round."""
    found = [record.event for record in made.records if isinstance(record.event, kind)]
    assert len(found) == 1, f"{len(found)} events are {kind.__name__}: {[record.event.TYPE for record in made.records]}"
    return found[0]


def kinds(made: Round) -> list[type[Message]]:
    return [type(record.event) for record in made.records]


def dispatched(made: Round) -> list[Any]:
    return [decode(type_name, value) for _, type_name, value in made.dispatches]


def with_machine(leader: Leader, machine_id: str = "m1", **fields: Any) -> None:
    """Have a machine that may be given work."""
    leader.inboxes.register(machine_id, **fields)
    leader.inboxes.present(machine_id, fields.get("session", "s1"))
    leader.round()


def assigned(leader: Leader, **fields: Any) -> Job:
    """A job that a machine was given in a round of its own."""
    submission = leader.inboxes.submit(**fields)
    leader.round()
    job = leader.job(submission)
    assert job.status == "assigned", f"job {job.job_id} is {job.status}"
    return job


def running(leader: Leader, **fields: Any) -> Job:
    job = assigned(leader, **fields)
    assert job.lease is not None
    leader.inboxes.heartbeat(job, machine_id=job.lease.machine_id, session=job.lease.session)
    leader.round()
    assert job.status == "running"
    return job


_TERMINAL: dict[type[Message], JobStatus] = {
    ev.JobCompleted: "completed",
    ev.JobFailed: "failed",
    ev.JobCancelled: "cancelled",
}
_TO: dict[type[Message], JobStatus] = {
    ev.JobAssigned: "assigned",
    ev.JobStarted: "running",
    ev.AssignmentRefused: "queued",
    ev.AttemptLost: "queued",
    **_TERMINAL,
}


def check_log(log: Log) -> dict[tuple[str, str], JobStatus]:
    """What must hold of a log however its leaders ended; the status of every job.

    Dense sequences, growing rounds and tokens, no input answered twice, only transitions of the table, one terminal
    event a job.
    """
    for place, records in log.places.items():
        assert [record.stamp.sequence for record in records] == list(range(len(records))), f"{place} is not dense"
        order = [(record.stamp.epoch, record.stamp.round, record.stamp.index) for record in records]
        assert order == sorted(set(order)), f"{place} goes back in epoch, round or index"
        assert all(partition_of(record.key, PARTITIONS) == record.partition for record in records)
    found = log.records()
    numbers = [(record.stamp.round, record.stamp.index) for record in found]
    assert len(numbers) == len(set(numbers)), "two facts have one place in one round"
    assert [record.stamp.at_ms for record in found] == sorted(record.stamp.at_ms for record in found), "time went back"
    causes = [record.stamp.cause for record in found if record.stamp.cause != "state"]
    assert len(causes) == len(set(causes)), f"answered twice: {sorted({c for c in causes if causes.count(c) > 1})}"
    rounds = [record.round for record in log.rounds]
    assert rounds == sorted(set(rounds)), "rounds go back"
    tokens = [record.event.token for record in found if isinstance(record.event, ev.JobAssigned)]
    assert tokens == sorted(set(tokens)), "tokens do not grow"
    assert all(token >> TOKEN_INDEX_BITS <= found[-1].stamp.round for token in tokens)
    statuses: dict[tuple[str, str], JobStatus] = {}
    for record in found:
        _follow(statuses, record.event)
    return statuses


def _follow(statuses: dict[tuple[str, str], JobStatus], event: Message) -> None:
    if not isinstance(event, ev.JobEvent):
        return
    key = (event.tenant, event.job_id)
    if isinstance(event, ev.JobAccepted):
        assert key not in statuses, f"job {event.job_id} is accepted twice"
        statuses[key] = "queued"
    elif (to := _TO.get(type(event))) is not None:
        assert to in TRANSITIONS[statuses[key]], f"job {event.job_id} goes from {statuses[key]} to {to}"
        statuses[key] = to
    elif isinstance(event, ev.CancelRequested):
        assert statuses[key] in LEASED


def causes_to_answer(inboxes: Inboxes) -> set[str]:
    """Inputs that get exactly one fact each: every command, and every report on a job that there was."""
    topics = (SUBMISSIONS.name, COMPLETIONS.name)
    return {
        record.cause
        for (topic, _), records in inboxes.places.items()
        for record in records
        if base_topic(topic) in topics and not isinstance(record.content, cmd.LeaderTick | Fault)
    }


def comparable(state: State) -> dict[str, Any]:
    """Everything that two ways to one state must agree on: what the log carries, and where placement looks."""
    backlog = [
        (level, tenant, queue, shape, sorted(bucket.live.items()))
        for level, tenants in enumerate(state.backlog.levels)
        for tenant, queues in tenants.items()
        for queue, buckets in queues.items()
        for shape, bucket in sorted(buckets.items())
    ]
    fleet = state.fleet
    count = len(fleet.ids)
    return {
        "jobs": state.jobs,
        "machines": list(state.machines.items()),
        "leases": {name: list(held.items()) for name, held in state.leases.items()},
        "lost": list(state.lost.items()),
        "memory": {key: value for _, jobs in state.memory.generations for key, value in jobs.items()},
        "backlog": backlog,
        "ids": fleet.ids,
        "free": (fleet.free_cpu[:count].tolist(), fleet.free_memory[:count].tolist()),
        "up": (fleet.up[:count].tolist(), fleet.heard[:count].tolist(), fleet.presence_age[:count].tolist()),
        "next_sequence": state.next_sequence,
        "positions": state.positions,
        "counters": (state.round, state.epoch, state.now_ms, state.digest),
        "soft": state.soft,
    }
