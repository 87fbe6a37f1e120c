"""The pure part of a takeover: which round was the last whole one, and what the log does not carry is dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobstream.scheduler.evolve import open_leases, recount
from jobstream.scheduler.inputs import split_cause
from jobstream.scheduler.leases import Soft
from jobstream.scheduler.state import PartitionKey, State
from jobstream.schemas import events as ev
from jobstream.schemas.envelope import CAUSE_STATE, Stamp
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES


@dataclass(slots=True)
class Tail:
    """The end of the log as a reader sees it: enough to tell a torn round, and what it has answered.

    Log partitions may be read in any order. Bounded by what a follower is ahead of the rounds, and by a round or two.
    """

    last: ev.RoundCommitted | None = None  # the newest round record
    before_last: dict[PartitionKey, int] = field(default_factory=dict)  # positions before that round
    causes: list[str] = field(default_factory=list)  # of facts whose inputs are at or beyond those positions
    # Where rounds newer than `last` begin in each log partition: (round, its first sequence number), oldest first.
    newer: dict[PartitionKey, list[tuple[int, int]]] = field(default_factory=dict)

    def saw_fact(self, place: PartitionKey, stamp: Stamp) -> None:
        if self.last is None or stamp.round > self.last.round:
            runs = self.newer.setdefault(place, [])
            if not runs or runs[-1][0] != stamp.round:
                runs.append((stamp.round, stamp.sequence))
        if stamp.cause != CAUSE_STATE and is_unread(stamp.cause, self.before_last):
            self.causes.append(stamp.cause)

    def saw_round(self, record: ev.RoundCommitted, positions: Mapping[PartitionKey, int]) -> None:
        """`positions` as they were before this record; those that are not known yet are as the record began."""
        before = dict(positions)
        for topic, ranges in record.inputs.items():
            for partition, (first, _) in ranges.items():
                before.setdefault((topic, partition), first)
        for topic, partitions in (record.positions or {}).items():
            for (
                partition,
                offset,
            ) in partitions.items():  # an epoch's first record may step back, to before a torn round
                before[topic, partition] = min(offset, before.get((topic, partition), offset))
        self.last, self.before_last = record, before
        self.causes = [cause for cause in self.causes if is_unread(cause, before)]
        newer = {place: [run for run in runs if run[0] > record.round] for place, runs in self.newer.items()}
        self.newer = {place: runs for place, runs in newer.items() if runs}

    def last_is_whole(self, next_sequence: Mapping[PartitionKey, int]) -> bool:
        """Whether every fact of the newest round is visible. A torn round is always the last of its epoch."""
        if self.last is None:
            return True
        for topic, partitions in self.last.written.items():
            for partition, (_, after) in partitions.items():
                if next_sequence.get((topic, partition), 0) < after:
                    return False
                runs = self.newer.get((topic, partition))
                if runs and runs[0][1] < after:  # its numbers were taken by a later epoch
                    return False
        return True


def is_unread(cause: str, positions: Mapping[PartitionKey, int]) -> bool:
    """Whether the input that a fact answers is at or beyond these positions; one of an unknown partition is."""
    topic, partition, offset = split_cause(cause)
    return offset >= positions.get((topic, partition), 0)


def resume_after(state: State, tail: Tail) -> frozenset[str]:
    """Set the inputs' positions to the end of the last whole round; the causes that must not be answered again.

    They stay answered until the positions have passed them, however many epochs that takes.
    """
    if not tail.last_is_whole(state.next_sequence):
        state.positions.update(tail.before_last)
    known = (*sorted(state.answered), *tail.causes)
    state.answered = frozenset(cause for cause in known if is_unread(cause, state.positions))
    return state.answered


def take_over(state: State) -> None:
    """Drop what the log does not carry (ages, presences, whose turn it is) and count free resources afresh."""
    recount(state)
    state.backlog.reset_turns()
    state.soft = Soft()
    for token, job in open_leases(state):
        assert job.lease is not None
        job.lease.seen = None
        state.soft.open_lease(state.partition_of(job.tenant), token, job.key)
    for machine in state.machines.values():
        machine.presence, machine.gone_session = 0, None


def raise_barrier(state: State, submission_ends: Mapping[PartitionKey, int] | None = None) -> None:
    """Nothing expires before what the last round had read of these inboxes has been read again; and no job that has
    ended is forgotten before every inbox of submissions has been read to the end that it has now."""
    for place, offset in state.positions.items():
        if place[0] in (HEARTBEATS.name, COMPLETIONS.name, MACHINES.name):
            state.soft.barrier[place] = offset
    state.soft.unread.update(submission_ends or {})
