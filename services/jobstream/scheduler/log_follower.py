"""Read the log and evolve the state: what a standby does all the time, and a takeover up to the end."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, Message

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import LogBroken, Unavailable
from jobstream.runtime.kafka import assign_at, headers_of, make_consumer, offsets_at, partitions_of, poll_batch
from jobstream.scheduler.evolve import LogContradicts, evolve, evolve_round
from jobstream.scheduler.loading import Projected
from jobstream.scheduler.state import PartitionKey, State
from jobstream.scheduler.takeover import Tail
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message as Fact
from jobstream.schemas.codec import decode
from jobstream.schemas.envelope import Stamp, from_headers
from jobstream.schemas.errors import Unreadable
from jobstream.topics.catalogue import LOG, ROUNDS, full_name

log = logging.getLogger(__name__)

CATCH_UP_TIMEOUT_S: Final = 600.0  # a million facts take a minute
SCAN_FIRST: Final = 256  # round records to look back over for one that names every position; doubled until found


class LogFollower:
    """Evolves a state by what is visible in `lifecycle`, `schedules`, `fleet` and `rounds`, from given next offsets."""

    def __init__(self, settings: Settings, state: State, known: Mapping[PartitionKey, Projected]) -> None:
        """`known`: how far `state` is in each partition of the log; one that is not named is read from its beginning.

        The newest round that is known already is read once more, to know what it answered if it is torn.
        Raises Unavailable, or LogBroken where the beginning is gone.
        """
        self.state = state
        self.tail = Tail()
        self.applied = 0  # facts and rounds that were read
        self._prefix = settings.topic_prefix
        self._cell = settings.cell
        self._consumer = make_consumer(
            settings, group=f"{settings.topic_prefix}follower", committed=True, **{"enable.partition.eof": True}
        )
        topics = [full_name(self._prefix, topic) for topic in (*LOG, ROUNDS)]
        counts = partitions_of(self._consumer, topics)
        self._places = [(topic, partition) for topic in topics for partition in range(counts[topic])]
        if counts[topics[0]] != settings.tenant_partitions:
            raise LogBroken(
                f"{topics[0]} has {counts[topics[0]]} partitions and the setting tenant_partitions is "
                f"{settings.tenant_partitions}: use the number that the topics were made with"
            )
        begins = offsets_at(self._consumer, self._places, OFFSET_BEGINNING)
        ends = self.ends()
        starts = {}
        self._evolve_from: dict[tuple[str, int], int] = {}
        for place in self._places:
            so_far = known.get(self._short(place))
            self._evolve_from[place] = 0 if so_far is None else so_far.next_offset
            start = 0 if so_far is None else so_far.round_offset
            if start < begins[place] and self._short(place) != (ROUNDS.name, 0):
                raise LogBroken(f"{place[0]}/{place[1]} begins at {begins[place]}, but {start} has not been read yet")
            starts[place] = start
        rounds = (topics[-1], 0)
        if self._short(rounds) not in known:
            starts[rounds] = self._find_positions(rounds, begins[rounds], ends[rounds])
        self._reached = dict.fromkeys(self._places, -1)
        assign_at(self._consumer, starts)

    def ends(self) -> dict[tuple[str, int], int]:
        """The offsets that a reader of committed records can reach now, by full topic name."""
        return offsets_at(self._consumer, self._places, OFFSET_END)

    def short_offsets(self, offsets: Mapping[tuple[str, int], int]) -> dict[PartitionKey, int]:
        """The same offsets by topic without prefix."""
        return {self._short(place): offset for place, offset in offsets.items()}

    def poll(self, timeout_s: float) -> int:
        """Wait for facts, apply what there is; how many. Raises LogBroken, Unavailable."""
        before = self.applied
        for message in poll_batch(self._consumer, timeout_s):
            self._apply(message)
        return self.applied - before

    def read_to(self, ends: Mapping[tuple[str, int], int], keep_alive: Callable[[], None]) -> None:
        """Apply everything below these offsets."""
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        while any(self._reached[place] < end for place, end in ends.items() if end > 0):
            self.poll(0.05)
            keep_alive()
            if time.monotonic() > deadline:
                raise Unavailable(f"the log could not be read to its end within {CATCH_UP_TIMEOUT_S} s")

    def close(self) -> None:
        self._consumer.close()

    def _apply(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None and partition is not None and offset is not None
        place = (topic, partition)
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._reached[place] = max(self._reached[place], offset)
                return
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise LogBroken(f"{topic}/{partition} does not hold the offset {offset} any more: {error.str()}")
            if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                return
            raise Unavailable(f"{topic}/{partition} cannot be read: {error.str()}")
        try:
            envelope = from_headers(headers_of(message))
            fact = decode(envelope.type, message.value())
            if isinstance(fact, ev.RoundCommitted):
                self._round(fact)
            elif (stamp := envelope.stamp) is None:
                raise Unreadable("envelope", "the record has no stamp")
            else:
                if offset >= self._evolve_from[place]:
                    self._evolve(place, offset, fact, stamp)
                self.tail.saw_fact(self._short(place), stamp)
        except (Unreadable, LogContradicts) as problem:
            raise LogBroken(f"{topic}/{partition} offset {offset} cannot be applied: {problem}") from problem
        self.applied += offset >= self._evolve_from[place]
        self._reached[place] = max(self._reached[place], offset + 1)

    def _evolve(self, place: tuple[str, int], offset: int, fact: Fact, stamp: Stamp) -> None:
        key = self._short(place)
        expected = self.state.next_sequence.get(key, 0)
        if stamp.sequence != expected:
            raise LogBroken(
                f"{place[0]}/{place[1]} offset {offset} has the sequence number {stamp.sequence}, not {expected}"
            )
        evolve(self.state, fact, stamp)
        self.state.next_sequence[key] = expected + 1

    def _round(self, record: ev.RoundCommitted) -> None:
        if record.cell == self._cell:
            self.tail.saw_round(record, self.state.positions)
            evolve_round(self.state, record)

    def _find_positions(self, rounds: tuple[str, int], begin: int, end: int) -> int:
        """The offset of the newest round record that names every position; `begin` where there is none yet."""
        back = SCAN_FIRST
        while True:
            start = max(begin, end - back)
            assign_at(self._consumer, {rounds: start})
            newest, reached = None, start
            deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
            while reached < end:
                for message in poll_batch(self._consumer, 1.0):
                    if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise Unavailable(f"{rounds[0]} cannot be read: {error.str()}")
                    reached = max(reached, (message.offset() or 0) + (error is None))
                    if error is None and self._names_positions(message):
                        newest = message.offset()
                if time.monotonic() > deadline:
                    raise Unavailable(f"{rounds[0]} could not be read to its end within {CATCH_UP_TIMEOUT_S} s")
            if newest is not None:
                return newest
            if start == begin:
                return begin
            back *= 2

    @staticmethod
    def _names_positions(message: Message) -> bool:
        record = decode(ev.RoundCommitted.TYPE, message.value())
        return isinstance(record, ev.RoundCommitted) and record.positions is not None

    def _short(self, place: tuple[str, int]) -> PartitionKey:
        return place[0].removeprefix(self._prefix), place[1]
