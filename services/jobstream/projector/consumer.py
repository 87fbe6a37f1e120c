"""Reads the log's partitions that the group gives this process, and has them written.

Positions come from Postgres alone; Kafka only shares the partitions among projectors. Whoever reads a partition that is
not where Postgres says drops what it holds, takes the stored position, and goes on there: the one reaction to another
projector, a lost answer to a commit, and a database that went back to older rows.

A partition stops, with an alarm, at a record that cannot be applied; the others go on. While Postgres is away the process
waits without polling Kafka: nobody else could write either, and a process that hangs loses its partitions to others.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from jobstream.projector.fold import Position, Record, Slice, fold
from jobstream.projector.writer import PartitionKey, PositionsMoved, Writer
from jobstream.runtime.clock import monotonic_ms
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import LogBroken, Unavailable
from jobstream.runtime.kafka import METADATA_TIMEOUT_S, headers_of, make_consumer, partitions_of, poll_batch
from jobstream.runtime.service import Backoff
from jobstream.topics.catalogue import LOG, full_name

log = logging.getLogger(__name__)

BATCH_RECORDS_MAX: Final = 2_000  # a transaction stays below 200 ms
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024  # of values; Postgres and this process hold a batch several times over
POLL_S: Final = 0.5  # how long a stop may take to be seen
SESSION_MS: Final = 6_000  # the least that brokers take: a killed projector's partitions go to another after this
POLL_INTERVAL_MAX_MS: Final = 60_000  # a hanging one's, after this
REMIND_EVERY_MS: Final = 60_000

T = TypeVar("T")


class Projector:
    """One member of the group. `stopped` says of each partition that has stopped, why; `applied` counts events."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._stop = stop
        self._prefix = settings.topic_prefix
        self._topics = [full_name(settings.topic_prefix, topic) for topic in LOG]
        self._writer = Writer(settings)
        self._positions: dict[PartitionKey, Position] = {}
        self._suspected: dict[PartitionKey, int] = {}  # next offset at which something was wrong once
        self._moved: set[PartitionKey] = set()  # what is still in hand of these was fetched before they were moved
        self._reminded_ms = 0
        self.stopped: dict[PartitionKey, str] = {}
        self.applied = 0
        self._consumer: Consumer = make_consumer(
            settings,
            group=f"{settings.topic_prefix}projector",
            committed=True,
            **{
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS // 3,
                "max.poll.interval.ms": POLL_INTERVAL_MAX_MS,
            },
        )

    def run(self) -> None:
        """Until `stop` is set. Raises ConfigurationError, and at the end LogBroken where partitions have stopped."""
        try:
            self._insist(self._writer.check)
            self._insist(lambda: partitions_of(self._consumer, self._topics))
            self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked)
            while not self._stop.is_set():
                self._moved.clear()
                for batch in _bounded(poll_batch(self._consumer, POLL_S, BATCH_RECORDS_MAX)):
                    self._take(batch)
                self._remind()
        except Unavailable:
            if not self._stop.is_set():  # else it was only what a last attempt ran into
                raise
        finally:
            stopped = list(self.stopped.values())  # closing gives the partitions away
            self._consumer.close()
            self._writer.close()
        if stopped:
            raise LogBroken("; ".join(stopped))

    def _take(self, batch: list[Message]) -> None:
        """Apply a batch, what can be applied of it; stop partitions that cannot go on."""
        records: dict[PartitionKey, list[Record]] = {}
        for message in batch:
            key = (_text(message.topic()).removeprefix(self._prefix), _number(message.partition()))
            if (error := message.error()) is not None:
                self._failed(key, error)
                continue
            position = self._positions.get(key)
            offset = _number(message.offset())
            if position is None or key in self.stopped or key in self._moved or offset < position.next_offset:
                continue
            records.setdefault(key, []).append(Record(offset, headers_of(message) or (), message.value()))
        slices = [fold(self._positions[key], found) for key, found in records.items()]
        self._apply([part for part in slices if part.after != part.before])
        for part in slices:
            if part.broken is not None and self._positions.get(_key(part)) == part.after:
                self._suspect(part.after, part.broken)

    def _apply(self, slices: list[Slice]) -> None:
        """Write slices in one transaction; where it fails for what is in them, each partition alone, then each record."""
        if not slices or self._stop.is_set():
            return
        try:
            self._insist(lambda: self._writer.apply(slices))
        except PositionsMoved:
            self._go_back(slices)
            return
        except LogBroken as error:
            if len(slices) > 1:
                for part in slices:
                    self._apply([part])
            elif len(slices[0].records) > 1:
                self._apply_singly(slices[0])
            else:
                at = slices[0].before
                offset = slices[0].records[0].offset
                self._suspect(at, LogBroken(f"{at.topic}/{at.partition} at offset {offset}: {error}"))
            return
        for part in slices:
            self._positions[_key(part)] = part.after
            self.applied += part.after.next_sequence - part.before.next_sequence

    def _apply_singly(self, part: Slice) -> None:
        for record in part.records:
            before = self._positions.get(_key(part))
            if before is None or record.offset < before.next_offset:
                return
            single = fold(before, [record])
            if single.broken is None:
                self._apply([single])
            if self._positions.get(_key(part)) != single.after or single.broken is not None:
                return

    def _go_back(self, slices: Iterable[Slice]) -> None:
        """The one reaction: read on from where Postgres says."""
        keys = [_key(part) for part in slices]
        for key, position in self._insist(lambda: self._writer.positions(keys)).items():
            expected = self._positions.get(key)
            if expected is not None and expected != position:
                log.warning(
                    "%s/%d: Postgres is at offset %d, not %d: going on there",
                    *key,
                    position.next_offset,
                    expected.next_offset,
                )
            self._positions[key] = position
            self._move(position)

    def _suspect(self, position: Position, error: LogBroken) -> None:
        """What is wrong when it is read once more is wrong: stop. The first time it may be this reader's own doing."""
        key = position.topic, position.partition
        if self._suspected.get(key) != position.next_offset:
            self._suspected[key] = position.next_offset
            log.warning("%s; reading it once more", error)
            self._move(position)
        else:
            self._halt(key, str(error))

    def _halt(self, key: PartitionKey, why: str) -> None:
        if not self.stopped:
            self._reminded_ms = monotonic_ms()
        self.stopped[key] = why
        self._consumer.pause([TopicPartition(self._prefix + key[0], key[1])])
        self._alarm(key)

    def _alarm(self, key: PartitionKey) -> None:
        log.critical(
            "projection stopped: %s. Rows of this partition are older than the log from here on", self.stopped[key]
        )
        try:
            self._writer.mark_stopped(self._positions[key], self.stopped[key])
        except Unavailable as error:
            log.warning("the alarm is not in the database yet: %s", error)

    def _remind(self) -> None:
        if self.stopped and monotonic_ms() - self._reminded_ms >= REMIND_EVERY_MS:
            self._reminded_ms = monotonic_ms()
            for key in self.stopped:
                self._alarm(key)

    def _failed(self, key: PartitionKey, error: KafkaError) -> None:
        """An error in place of a record."""
        if error.fatal():
            raise Unavailable(f"the Kafka client cannot go on: {error.str()}")
        if error.code() != KafkaError._AUTO_OFFSET_RESET or key not in self._positions:
            log.warning("%s/%d: %s", *key, error.str())
            return
        expected = self._positions[key].next_offset
        here = TopicPartition(self._prefix + key[0], key[1])
        low, high = self._insist(lambda: _watermarks(self._consumer, here))
        where = f"{key[0]}/{key[1]}"
        if low > expected:
            self._halt(key, f"{where}: offsets {expected} to {low - 1} were removed before they were read")
        elif high < expected:
            self._halt(key, f"{where}: the log ends at offset {high}, but was read up to {expected}: it was made anew")
        else:
            self._suspect(self._positions[key], LogBroken(f"{where}: {error.str()}"))

    def _move(self, position: Position) -> None:
        """Read on from there. Not by `seek`, which is refused while a partition is being started or has failed."""
        there = TopicPartition(self._prefix + position.topic, position.partition, position.next_offset)
        self._moved.add((position.topic, position.partition))
        self._consumer.incremental_unassign([there])
        self._consumer.incremental_assign([there])

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        keys = [(given.topic.removeprefix(self._prefix), given.partition) for given in partitions]
        positions = self._insist(lambda: self._writer.positions(keys)) if keys else {}
        self._forget(keys)
        self._positions.update(positions)
        consumer.incremental_assign(
            [TopicPartition(self._prefix + at.topic, at.partition, at.next_offset) for at in positions.values()]
        )
        log.info("given %d partitions, %d now", len(keys), len(self._positions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget((taken.topic.removeprefix(self._prefix), taken.partition) for taken in partitions)
        log.info("%d partitions go to others, %d stay", len(partitions), len(self._positions))

    def _forget(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self._positions.pop(key, None)
            self._suspected.pop(key, None)
            self.stopped.pop(key, None)

    def _insist(self, action: Callable[[], T]) -> T:
        """Do it, and again with back-off while Kafka or Postgres is away; raises Unavailable once `stop` is set."""
        backoff = Backoff(self._stop)
        while True:
            try:
                return action()
            except Unavailable as error:
                if self._stop.is_set():
                    raise
                log.warning("%s; trying again", error)
                backoff.wait()


def _bounded(messages: list[Message]) -> Iterator[list[Message]]:
    """Parts of a batch whose values stay within BATCH_BYTES_MAX together."""
    part: list[Message] = []
    size = 0
    for message in messages:
        length = len(message)
        if part and size + length > BATCH_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(message)
        size += length
    if part:
        yield part


def _watermarks(consumer: Consumer, where: TopicPartition) -> tuple[int, int]:
    try:
        low, high = consumer.get_watermark_offsets(where, timeout=METADATA_TIMEOUT_S, cached=False)
    except KafkaException as error:
        raise Unavailable(f"Kafka does not answer: {error.args[0].str()}") from error
    return low, high


def _key(part: Slice) -> PartitionKey:
    return part.before.topic, part.before.partition


def _text(value: str | None) -> str:
    return value or ""


def _number(value: int | None) -> int:
    return -1 if value is None else value
