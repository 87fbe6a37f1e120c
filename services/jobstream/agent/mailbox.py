"""The machine's mailbox: one partition of `dispatch`, shared with others, read from its end as queried at the start."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import Message as Record

from jobstream.agent.orders import read_dispatch
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import Unavailable
from jobstream.runtime.kafka import assign_at, make_consumer, offsets_at, partitions_of
from jobstream.schemas.envelope import from_headers
from jobstream.schemas.errors import Unreadable
from jobstream.schemas.events import AssignAttempt, CancelAttempt, RevokeAttempt
from jobstream.topics.catalogue import DISPATCH, full_name
from jobstream.topics.partitioning import partition_of

log = logging.getLogger(__name__)

POLL_S: Final = 1.0  # a record wakes the poll at once; this bounds how long stopping takes
# The broker holds a fetch until there is something: 10,000 idle agents would otherwise ask it 100,000 times a second.
FETCH_WAIT_MS: Final = 5_000
QUEUED_KIB_MAX: Final = 8 * 1024

Received = Callable[[AssignAttempt | CancelAttempt | RevokeAttempt], None]
Unread = Callable[[Record, Unreadable, str | None], None]


class Mailbox:
    """A thread that reads the partition and hands on what is for this machine."""

    def __init__(self, settings: Settings, machine_id: str, received: Received, unread: Unread) -> None:
        self._key = machine_id.encode()
        self._received = received
        self._unread = unread
        self._stop = threading.Event()
        self._topic = full_name(settings.topic_prefix, DISPATCH)
        self._consumer: Consumer = make_consumer(
            settings,
            group=f"{settings.topic_prefix}agent.{machine_id}",  # never joined: the client asks for a name
            committed=False,
            **{"fetch.wait.max.ms": FETCH_WAIT_MS, "queued.max.messages.kbytes": QUEUED_KIB_MAX},
        )
        self._machine_id = machine_id
        self._thread = threading.Thread(target=self._read, name="mailbox", daemon=True)

    def open(self) -> None:
        """Begin to read from the end as it is now; raises Unavailable. Before the machine registers."""
        partitions = partitions_of(self._consumer, [self._topic])[self._topic]
        self._place = (self._topic, partition_of(self._machine_id, partitions))
        self._to_end()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._consumer.close()

    def _to_end(self) -> None:
        assign_at(self._consumer, offsets_at(self._consumer, [self._place], OFFSET_END))

    def _read(self) -> None:
        while not self._stop.is_set():
            record = self._consumer.poll(POLL_S)
            if record is None:
                continue
            if (error := record.error()) is not None:
                self._failed(error)
            elif record.key() == self._key:
                try:
                    self._received(read_dispatch(record.headers(), _value(record)))
                except Unreadable as unreadable:
                    self._unread(record, unreadable, _type_of(record))

    def _failed(self, error: KafkaError) -> None:
        log.warning("the mailbox %s/%d cannot be read: %s", *self._place, error.str())
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            # What was there is gone. Leases of lost dispatches expire by themselves.
            try:
                self._to_end()
            except (Unavailable, KafkaException) as failure:
                log.warning("the end of the mailbox is not known: %s", failure)
                self._stop.wait(POLL_S)


def _value(record: Record) -> bytes | None:
    value = record.value()
    return value.encode() if isinstance(value, str) else value


def _type_of(record: Record) -> str | None:
    try:
        return from_headers(record.headers()).type  # type: ignore[arg-type]
    except Unreadable:
        return None
