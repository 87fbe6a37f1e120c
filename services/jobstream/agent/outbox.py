"""The agent's records to Kafka: each with an answer to the loop whether the log has it; reports until it has."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Record

from jobstream.agent.wakeup import Wakeup
from jobstream.runtime.clock import wall_ms
from jobstream.runtime.dead_letters import dead_letter
from jobstream.schemas.base import Message
from jobstream.schemas.codec import encode
from jobstream.schemas.envelope import Envelope, Headers, format_time, to_headers
from jobstream.schemas.new_ids import new_event_id
from jobstream.topics.catalogue import DEAD_LETTERS, Topic, full_name

log = logging.getLogger(__name__)

POLL_S: Final = 1.0  # an answer wakes the poll at once; this bounds how long stopping takes
RESEND_S: Final = 1.0  # after the client itself has retried for its delivery timeout

Done = Callable[[bool], None]


class Outbox:
    """Sends from the loop's thread; answers come back through `wakeup`. A thread serves the client's callbacks."""

    def __init__(self, producer: Producer, *, prefix: str, source: str, wakeup: Wakeup) -> None:
        self._producer = producer
        self._prefix = prefix
        self._source = source
        self._wakeup = wakeup
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kafka-answers", daemon=True)
        self._unacknowledged: dict[str, tuple[Topic, str, Message, Done]] = {}
        self._resend: dict[str, float] = {}  # report → time.monotonic() of the next try
        self._thread.start()

    @property
    def reports_pending(self) -> int:
        """Reports that the log may not have yet."""
        return len(self._unacknowledged)

    def send(self, topic: Topic, key: str, message: Message, done: Done, event_id: str | None = None) -> None:
        """Send once. `done(True)` when every in-sync replica has it, `done(False)` when that could not be learnt."""
        envelope = Envelope(
            id=event_id or new_event_id(), type=message.TYPE, source=self._source, time=format_time(wall_ms())
        )
        self._produce(topic, key.encode(), encode(message), to_headers(envelope), done)

    def report(self, topic: Topic, key: str, message: Message, done: Done) -> None:
        """Send until the log has it, under one event id. Held in memory meanwhile: as many as attempts that ended."""
        report = new_event_id()
        self._unacknowledged[report] = (topic, key, message, done)
        self._send_report(report)

    def send_dead_letter(self, topic: Topic, record: Record, reason: str, detail: str, type_name: str | None) -> None:
        """Keep what could not be read, for operators."""
        key, value, headers = dead_letter(
            topic.name,
            record.partition() or 0,
            record.offset() or 0,
            reason,
            detail,
            type_name,
            _bytes(record.key()),
            _bytes(record.value()),
        )
        log.warning("a record of %s/%s at %s cannot be read (%s: %s): kept as a dead letter", topic.name,
                    record.partition(), record.offset(), reason, detail)  # fmt: skip
        self._produce(DEAD_LETTERS, key, value, headers, lambda known: None)

    def resend_due(self, now: float) -> None:
        """Send again the reports whose time has come."""
        for report in [report for report, at in self._resend.items() if at <= now]:
            del self._resend[report]
            self._send_report(report)

    def next_resend(self) -> float | None:
        """time.monotonic() of the next report to send again."""
        return min(self._resend.values(), default=None)

    def close(self, timeout_s: float) -> int:
        """Give what is queued so long to reach the log; returns how many records did not."""
        left = self._producer.flush(timeout_s)
        self._stop.set()
        self._thread.join()
        return int(left)

    def _send_report(self, report: str) -> None:
        topic, key, message, done = self._unacknowledged[report]

        def answered(known: bool) -> None:
            if known:
                del self._unacknowledged[report]
                done(True)
            else:
                self._resend[report] = time.monotonic() + RESEND_S

        self.send(topic, key, message, answered, report)

    def _produce(self, topic: Topic, key: bytes | None, value: bytes, headers: Headers, done: Done) -> None:
        name = full_name(self._prefix, topic)

        def delivered(error: KafkaError | None, record: Record) -> None:
            if error is not None:
                log.warning("a record to %s was not acknowledged: %s", name, error.str())
            self._wakeup.post(lambda: done(error is None))

        try:
            self._producer.produce(name, value=value, key=key, headers=headers, on_delivery=delivered)
        except BufferError:
            log.warning("a record to %s was not sent: the client's queue is full", name)
            self._wakeup.post(lambda: done(False))

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(POLL_S)


def _bytes(part: str | bytes | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part
