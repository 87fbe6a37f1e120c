"""The lease clock: how old a lease or a presence is, counted in the leader's ticks of its own inbox partition.

Heartbeats and ticks share one order, so nothing needs to be drained; where the broker, the partition or the leader was
away there are no ticks, so an outage ages nobody. All of it is soft: it comes from inputs and is dropped at a takeover.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from jobstream.schemas.commands import LeaderTick
from jobstream.schemas.envelope import TOKEN_INDEX_BITS

TICK_COUNTS_MAX_MS: Final = 2_000  # a broker's clock that jumps, or a leader that hung, counts as two ticks at most

JobKey = tuple[str, str]
PartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """The times that the leader goes by, in ms. See `LeaseSettings` for what makes them safe."""

    ttl_ms: int
    margin_ms: int
    grace_ms: int

    @property
    def expires_after_ms(self) -> int:
        return self.ttl_ms + self.grace_ms

    @property
    def presence_age_max_ms(self) -> int:
        """How old a presence may be to be named in a dispatch: half of the time in which the agent may act on it."""
        return (self.ttl_ms - self.margin_ms) // 2


@dataclass(slots=True)
class TickClock:
    """Time as the ticks of one inbox partition count it, in ms."""

    epoch: int = 0
    number: int = -1
    round: int = 0
    appended_ms: int = 0
    age_ms: int = 0

    def tick(self, tick: LeaderTick, appended_ms: int) -> bool:
        """Count one tick; False where it is of an older epoch, or a repeat, and counts for nothing."""
        if (tick.epoch, tick.number) <= (self.epoch, self.number):
            return False
        if self.number >= 0:
            self.age_ms += min(max(appended_ms - self.appended_ms, 0), tick.elapsed_ms, TICK_COUNTS_MAX_MS)
        self.epoch, self.number, self.round, self.appended_ms = tick.epoch, tick.number, tick.round, appended_ms
        return True


@dataclass(slots=True)
class Soft:
    """What inputs alone tell."""

    clocks: dict[PartitionKey, TickClock] = field(default_factory=dict)
    # By partition. `aged`: token → (clock age at the last sign of life, job), oldest first.
    # `fresh`: token → job: assigned, never heard, and no tick has carried the assignment's round yet.
    aged: dict[int, OrderedDict[int, tuple[int, JobKey]]] = field(default_factory=dict)
    fresh: dict[int, dict[int, JobKey]] = field(default_factory=dict)
    to_start: dict[JobKey, None] = field(default_factory=dict)  # jobs heard for the first time, in order
    ended_sessions: dict[str, None] = field(default_factory=dict)  # machines with leases of a session proven gone
    machines_ticked: bool = False  # machines have aged since it was last asked which are lost
    read: dict[PartitionKey, int] = field(default_factory=dict)  # next offsets, as read since the takeover
    # Expire nothing before these inputs have been read up to here: what was seen before the takeover counts.
    barrier: dict[PartitionKey, int] = field(default_factory=dict)
    # Ends of submissions as of the takeover: until they are read, one of them may repeat a job that ended long ago.
    unread: dict[PartitionKey, int] = field(default_factory=dict)

    def lower(self, marks: dict[PartitionKey, int]) -> bool:
        """Forget the marks that have been read up to; whether none is left."""
        for place in [place for place, offset in marks.items() if self.read.get(place, 0) >= offset]:
            del marks[place]
        return not marks

    def clock(self, topic: str, partition: int) -> TickClock:
        found = self.clocks.get((topic, partition))
        if found is None:
            found = self.clocks[topic, partition] = TickClock()
        return found

    def open_lease(self, partition: int, token: int, key: JobKey) -> None:
        self.fresh.setdefault(partition, {})[token] = key

    def close_lease(self, partition: int, token: int, key: JobKey) -> None:
        if (fresh := self.fresh.get(partition)) is not None:
            fresh.pop(token, None)
        if (aged := self.aged.get(partition)) is not None:
            aged.pop(token, None)
        self.to_start.pop(key, None)

    def sign_of_life(self, partition: int, token: int, key: JobKey, age_ms: int) -> None:
        self.fresh.get(partition, {}).pop(token, None)
        aged = self.aged.setdefault(partition, OrderedDict())
        aged[token] = (age_ms, key)
        aged.move_to_end(token)

    def age_fresh(self, partition: int, round_number: int, age_ms: int) -> None:
        """A tick that carries `round_number`: leases assigned in that round or before begin to age from `age_ms`.

        Tokens grow with the round and `fresh` keeps them in order of opening, so that only the front is looked at.
        """
        fresh = self.fresh.get(partition)
        if not fresh:
            return
        due = []
        for token, key in fresh.items():
            if token >> TOKEN_INDEX_BITS > round_number:
                break
            due.append((token, key))
        aged = self.aged.setdefault(partition, OrderedDict())
        for token, key in due:
            del fresh[token]
            aged[token] = (age_ms, key)

    def expired(self, partition: int, age_ms: int, after_ms: int) -> Iterator[JobKey]:
        """Jobs of which the lease has had no sign of life for more than `after_ms`, oldest first."""
        for seen_ms, key in self.aged.get(partition, {}).values():
            if age_ms - seen_ms <= after_ms:
                return
            yield key
