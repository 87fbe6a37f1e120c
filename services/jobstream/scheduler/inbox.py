"""Read the inboxes: one thread a consumer, since one client cannot wait for several. Bounded, each topic with a share."""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import JobstreamError, Unavailable
from jobstream.runtime.kafka import assign_at, headers_of, make_consumer, poll_batch
from jobstream.scheduler.inputs import Input, read_input
from jobstream.scheduler.state import PartitionKey
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES, SUBMISSIONS

log = logging.getLogger(__name__)

BATCH_MAX: Final = 1_000
WAITING_MAX: Final = 5_000  # records that a reader holds for the leader; then it stops reading, and Kafka holds them
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024  # likewise: a record can have 4 MiB, and 5,000 of them would be 20 GB
ROUND_BYTES_MAX: Final = 16 * 1024 * 1024  # that a round takes from each reader: what it writes is about as large
POLL_S: Final = 0.2  # how late a reader notices that it is to stop


class Waiting:
    """Records that a reader holds, in order; `size` is in bytes of their values."""

    def __init__(self) -> None:
        self._records: deque[Input] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def full(self) -> bool:
        return len(self._records) > WAITING_MAX or self.size > WAITING_BYTES_MAX

    def extend(self, records: list[Input]) -> None:
        self._records.extend(records)
        self.size += sum(len(record.raw or b"") for record in records)

    def take(self, most: int) -> list[Input]:
        """The first ones, at most so many and ROUND_BYTES_MAX or what the last of them has more."""
        taken: list[Input] = []
        size = 0
        while self._records and len(taken) < most and size < ROUND_BYTES_MAX:
            record = self._records.popleft()
            size += len(record.raw or b"")
            taken.append(record)
        self.size -= size
        return taken


class Inbox:
    """Readers of all inboxes, from given next offsets. Use as a context; what a reader meets is raised by `take`."""

    def __init__(self, settings: Settings, starts: Mapping[PartitionKey, int]) -> None:
        self._prefix = settings.topic_prefix
        self._changed = threading.Condition()
        self._stopping = False
        self._failure: JobstreamError | None = None
        self._waiting: list[Waiting] = []
        self._threads: list[threading.Thread] = []
        for name, topics, committed in (
            ("submissions", (SUBMISSIONS.name,), True),
            ("completions", (COMPLETIONS.name,), False),
            ("signs-of-life", (HEARTBEATS.name, MACHINES.name), False),
        ):
            places = {place: at for place, at in starts.items() if place[0].partition(".")[0] in topics}
            consumer = make_consumer(settings, group=f"{self._prefix}inbox", committed=committed)
            assign_at(consumer, {(self._prefix + topic, p): at for (topic, p), at in places.items()})
            waiting = Waiting()
            thread = threading.Thread(target=self._read, args=(consumer, waiting), name=name, daemon=True)
            self._waiting.append(waiting)
            self._threads.append(thread)

    def __enter__(self) -> "Inbox":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def take(self, timeout_s: float, most: int) -> list[Input]:
        """Wait for records, at most `timeout_s`; then what is there, at most an equal share of `most` from each reader.

        A reader whose records are large gives fewer: see `Waiting.take`.
        """
        with self._changed:
            if not any(self._waiting) and self._failure is None:
                self._changed.wait(timeout_s)
            if self._failure is not None:
                raise self._failure
            share = most // len(self._waiting)
            taken: list[Input] = []
            for waiting in self._waiting:
                taken.extend(waiting.take(share))
            self._changed.notify_all()
            return taken

    def _read(self, consumer: Consumer, waiting: Waiting) -> None:
        try:
            while not self._stopping:
                records = [self._input(message) for message in poll_batch(consumer, POLL_S, BATCH_MAX)]
                fresh = [record for record in records if record is not None]
                if not fresh:
                    continue
                with self._changed:
                    waiting.extend(fresh)
                    self._changed.notify_all()
                    while waiting.full and not self._stopping:
                        self._changed.wait()
        except JobstreamError as error:
            self._fail(error)
        except KafkaException as error:
            self._fail(Unavailable(f"an inbox cannot be read: {error.args[0].str()}"))
        except Exception as error:  # a thread that ends silently would leave a leader that hears nothing
            log.exception("an inbox reader failed")
            self._fail(Unavailable(f"an inbox reader failed: {type(error).__name__}: {error}"))
        finally:
            consumer.close()

    def _fail(self, error: JobstreamError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _input(self, message: Message) -> Input | None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if (error := message.error()) is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise Unavailable(f"{topic}/{partition} does not hold the next offset any more: {error.str()}")
            if error.fatal():
                raise Unavailable(f"{topic}/{partition} cannot be read: {error.str()}")
            return None  # the client goes on by itself
        assert topic is not None and partition is not None and offset is not None
        return read_input(
            topic.removeprefix(self._prefix),
            partition,
            offset,
            message.timestamp()[1],
            message.key(),
            headers_of(message),
            message.value(),
        )
