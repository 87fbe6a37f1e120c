"""The pure part of a takeover: which round was the last whole one, and what the log does not carry is dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobstream.scheduler.evolve import recount
from jobstream.scheduler.leases import Soft
from jobstream.scheduler.state import PartitionKey, State
from jobstream.schemas import events as ev
from jobstream.schemas.envelope import CAUSE_STATE, Stamp
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES


@dataclass(slots=True)
class Tail:
    """The end of the log as a reader sees it: enough to tell a torn round, and what it has answered."""

    last: ev.RoundCommitted | None = None  # the newest round record
    before_last: dict[PartitionKey, int] = field(default_factory=dict)  # positions before that round
    causes: list[tuple[int, str]] = field(default_factory=list)  # (round, cause) of facts of the last round and later
    spans: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)  # newest round there, its first sequence

    def saw_fact(self, place: PartitionKey, stamp: Stamp) -> None:
        span = self.spans.get(place)
        if span is None or span[0] != stamp.round:
            self.spans[place] = (stamp.round, stamp.sequence)
        if stamp.cause != CAUSE_STATE:
            self.causes.append((stamp.round, stamp.cause))

    def saw_round(self, record: ev.RoundCommitted, positions: Mapping[PartitionKey, int]) -> None:
        """`positions` as they were before this record. Facts of earlier rounds need not be told again."""
        self.last = record
        self.before_last = {
            (topic, partition): positions.get((topic, partition), 0)
            for topic, ranges in record.inputs.items()
            for partition in ranges
        }
        self.causes = [(number, cause) for number, cause in self.causes if number >= record.round]

    def last_is_whole(self, next_sequence: Mapping[PartitionKey, int]) -> bool:
        """Whether every fact of the newest round is visible. A torn round is always the last of its epoch."""
        if self.last is None:
            return True
        for topic, partitions in self.last.written.items():
            for partition, (_, after) in partitions.items():
                place = (topic, partition)
                if next_sequence.get(place, 0) < after:
                    return False
                newest, first = self.spans.get(place, (0, 0))
                if newest > self.last.round and first < after:  # its numbers were taken by a later epoch
                    return False
        return True

    def answered(self) -> frozenset[str]:
        """Causes that rounds after the last whole one have answered."""
        return frozenset(cause for _, cause in self.causes)


def resume_after(state: State, tail: Tail) -> frozenset[str]:
    """Set the inputs' positions to the end of the last whole round; the causes that must not be answered again."""
    if tail.last is None or tail.last_is_whole(state.next_sequence):
        newest = tail.last.round if tail.last is not None else 0
        return frozenset(cause for number, cause in tail.causes if number > newest)
    state.positions.update(tail.before_last)
    return tail.answered()


def take_over(state: State) -> None:
    """Drop what the log does not carry (ages, presences, whose turn it is) and count free resources afresh."""
    recount(state)
    state.backlog.reset_turns()
    state.soft = Soft()
    leased = [(job.lease.token, job) for job in state.jobs.values() if job.lease is not None]
    for token, job in sorted(leased, key=lambda pair: pair[0]):
        assert job.lease is not None
        job.lease.seen = None
        state.soft.open_lease(state.partition_of(job.tenant), token, job.key)
    for machine in state.machines.values():
        machine.presence, machine.gone_session = 0, None


def raise_barrier(state: State) -> None:
    """Nothing expires before what the last round had read of these inboxes has been read again."""
    for place, offset in state.positions.items():
        if place[0] in (HEARTBEATS.name, COMPLETIONS.name, MACHINES.name):
            state.soft.barrier[place] = offset
