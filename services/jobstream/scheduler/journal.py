"""Write a round in one transaction, and what follows it. The producer is used for one epoch, and never after a doubt."""

import logging
import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from jobstream.runtime.config import Settings
from jobstream.runtime.dead_letters import dead_letter
from jobstream.runtime.errors import LeadershipLost, Unavailable
from jobstream.runtime.faults import fault_point
from jobstream.runtime.kafka import FATAL, base_properties, log_error, make_producer, told
from jobstream.scheduler.rounds import DispatchRecord, LogRecord, Round
from jobstream.scheduler.state import PartitionKey
from jobstream.schemas.codec import encode
from jobstream.schemas.commands import LeaderTick
from jobstream.schemas.envelope import CONTENT_TYPE, SPEC_VERSION, Headers, format_time
from jobstream.schemas.events import RoundCommitted
from jobstream.schemas.new_ids import new_event_id
from jobstream.topics.catalogue import DEAD_LETTERS, DISPATCH, ROUNDS, TICKED
from jobstream.topics.partitioning import partition_of

log = logging.getLogger(__name__)

INIT_TIMEOUT_S: Final = 30.0  # an older leader's hung transaction is ended first
CONNECTION_ERRORS: Final = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
)


class Doubtful(Exception):
    """The round is committed, but slowly or over a lost connection: a late copy of its end could tear the next one.

    (librdkafka resends EndTxn with the same producer epoch; a new epoch refuses the late copy.)
    """


class Journal:
    """One epoch's writer: a transactional producer for rounds, a plain one for dispatches and ticks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._prefix = settings.topic_prefix
        self._connection_lost = False
        self._appended_ms = 0
        self.offsets: dict[PartitionKey, int] = {}  # next offsets of the log after what this epoch wrote
        self._source = f"/jobstream/leader/{settings.cell}".encode()
        self._rounds = Producer(
            {
                **base_properties(settings),
                "transactional.id": f"{settings.topic_prefix}leader.{settings.cell}",
                "transaction.timeout.ms": settings.transaction_timeout_ms,
                "message.timeout.ms": settings.transaction_timeout_ms,
                "socket.timeout.ms": settings.socket_timeout_ms,
                "linger.ms": 0,
                # The broker answers "concurrent transactions" while it writes the last one's markers; the default
                # of 100 ms would stall every second commit.
                "retry.backoff.ms": 2,
                "retry.backoff.max.ms": 1_000,
                "message.max.bytes": 4 * 1024 * 1024,
                "queue.buffering.max.messages": 500_000,
                "queue.buffering.max.kbytes": 1024 * 1024,
                "compression.type": "lz4",
                "error_cb": self._on_error,
            },
            logger=log,
        )
        self._plain = make_producer(settings)
        self._ticks = make_producer(settings, linger_ms=20)  # one request for all partitions

    def init(self) -> None:
        """Fence every older leader; raises Unavailable, LeadershipLost."""
        try:
            self._rounds.init_transactions(INIT_TIMEOUT_S)
        except FATAL as error:
            raise self._reaction("init_transactions", error) from error

    def commit(self, made: Round) -> int:
        """Write a round; the append time of its record in ms. Raises LeadershipLost, Unavailable, or Doubtful after it."""
        assert made.record is not None
        self._connection_lost = False
        try:
            self._rounds.begin_transaction()
            self._write(made)
            fault_point("leader.in_transaction")
            self._rounds.flush(self._settings.transaction_timeout_ms / 1000)
            fault_point("leader.before_commit")
            began = time.monotonic()
            self._rounds.commit_transaction(self._settings.transaction_timeout_ms / 1000)
        except FATAL as error:
            raise self._reaction(f"round {made.number}", error) from error
        except BufferError as error:
            raise Unavailable(f"round {made.number} does not fit into the producer's queue: {error}") from error
        fault_point("leader.after_commit")
        took_ms = (time.monotonic() - began) * 1000
        if self._connection_lost or took_ms > self._settings.socket_timeout_ms / 2:
            raise Doubtful(f"the commit of round {made.number} took {took_ms:.0f} ms")
        return self._appended_ms

    @property
    def appended_ms(self) -> int:
        """The broker's time of the newest round record."""
        return self._appended_ms

    def dispatch(self, dispatches: Iterable[DispatchRecord]) -> None:
        """Tell machines. Not awaited: what is lost ages until its lease expires, or is sent again at a takeover."""
        topic = self._prefix + DISPATCH.name
        now = format_time(int(time.time() * 1000)).encode()
        for machine_id, type_name, value in dispatches:
            self._plain.produce(
                topic,
                key=machine_id.encode(),
                value=value,
                partition=partition_of(machine_id, self._settings.mailbox_partitions),
                headers=self._headers(new_event_id().encode(), type_name.encode(), now),
                on_delivery=_log_failure,
            )
        self._plain.poll(0)

    def tick(self, tick: LeaderTick) -> None:
        """Append a tick to every partition of the ticked inboxes."""
        value, headers = (
            encode(tick),
            self._headers(
                f"tick.{tick.epoch}.{tick.number}".encode(),
                LeaderTick.TYPE.encode(),
                format_time(int(time.time() * 1000)).encode(),
            ),
        )
        for topic in TICKED:
            for partition in range(self._settings.tenant_partitions):
                self._ticks.produce(self._prefix + topic.name, value=value, partition=partition, headers=headers)
        self._ticks.poll(0)

    def close(self) -> None:
        """Drop the producers; what is unsent of dispatches is given a moment."""
        self._plain.flush(1.0)
        self._rounds.purge()

    def _write(self, made: Round) -> None:
        time_text = format_time(made.now_ms).encode()
        last = {(record.topic, record.partition): number for number, record in enumerate(made.records)}
        for number, record in enumerate(made.records):
            newest = last[record.topic, record.partition] == number
            self._rounds.produce(
                self._prefix + record.topic,
                key=record.key.encode(),
                value=record.value,
                partition=record.partition,
                headers=self._log_headers(record, time_text),
                on_delivery=self._delivered if newest else None,
            )
        for unread, fault in made.dead_letters:
            key, value, headers = dead_letter(
                unread.topic,
                unread.partition,
                unread.offset,
                fault.reason,
                fault.detail,
                unread.type_name,
                unread.key,
                unread.raw,
            )
            self._rounds.produce(self._prefix + DEAD_LETTERS.name, key=key, value=value, headers=headers)
        assert made.record is not None
        self._rounds.produce(
            self._prefix + ROUNDS.name,
            key=self._settings.cell.encode(),
            value=encode(made.record),
            partition=0,
            headers=self._headers(f"e{made.epoch}.r{made.number}".encode(), RoundCommitted.TYPE.encode(), time_text),
            on_delivery=self._round_delivered,
        )

    def _log_headers(self, record: LogRecord, time_text: bytes) -> Headers:
        stamp = record.stamp
        headers = self._headers(
            b"e%d.r%d.%d" % (stamp.epoch, stamp.round, stamp.index), record.event.TYPE.encode(), time_text
        )
        headers += (
            ("ce_sequence", b"%d" % stamp.sequence),
            ("ce_epoch", b"%d" % stamp.epoch),
            ("ce_round", b"%d" % stamp.round),
            ("ce_index", b"%d" % stamp.index),
            ("ce_cause", stamp.cause.encode()),
        )
        return headers

    def _headers(self, identity: bytes, type_name: bytes, time_text: bytes) -> Headers:
        return [
            ("ce_specversion", SPEC_VERSION),
            ("ce_id", identity),
            ("ce_type", type_name),
            ("ce_source", self._source),
            ("ce_time", time_text),
            ("content-type", CONTENT_TYPE),
        ]

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            place = (message.topic() or "").removeprefix(self._prefix), message.partition() or 0
            self.offsets[place] = (message.offset() or 0) + 1

    def _round_delivered(self, error: KafkaError | None, message: Message) -> None:
        self._delivered(error, message)
        if error is None:
            self._appended_ms = message.timestamp()[1]

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in CONNECTION_ERRORS:
            self._connection_lost = True
        log_error(error)

    def _reaction(self, what: str, error: KafkaException | SystemError) -> Exception:
        reason = told(error)
        if reason.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
            return LeadershipLost(f"{what}: a newer leader has fenced this one: {reason.str()}")
        return Unavailable(f"{what} failed: {reason.str()}")


def _log_failure(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        log.warning("a dispatch was not delivered and will be made again: %s", error.str())
