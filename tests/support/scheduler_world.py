"""A cell without Kafka: inboxes and a log as lists, a leader as the pure core. For tests of the core alone.

`Log` shows of a round what a torn commit would show; `Leader` takes over and makes rounds as the real one does.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.scheduler_inboxes import PARTITIONS, Inboxes

from jobstream.scheduler import invariants
from jobstream.scheduler.evolve import evolve, evolve_round
from jobstream.scheduler.inputs import Input, base_topic
from jobstream.scheduler.leases import LeaseTimes
from jobstream.scheduler.rounds import LogRecord, Round, Rules, Suspects, lease_dispatch, run_round
from jobstream.scheduler.state import Job, PartitionKey, State
from jobstream.scheduler.takeover import Tail, raise_barrier, resume_after, take_over
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import decode
from jobstream.topics.catalogue import HEARTBEATS, MACHINES, SUBMISSIONS

TIMES = LeaseTimes(ttl_ms=90_000, margin_ms=15_000, grace_ms=10_000)
RULES = Rules(cell="cell-0", lease=TIMES, grants={"billing": frozenset({"acme"})})
REREAD_MS = TIMES.expires_after_ms + 60_000  # as the leader does it


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
