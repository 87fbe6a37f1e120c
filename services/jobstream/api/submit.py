"""Commands to Kafka: one idempotent producer for all requests, so that those at the same time share a batch."""

import asyncio
import logging
import threading
from collections import deque
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import ClusterMetadata

from jobstream.api.problems import Problem
from jobstream.runtime.clock import wall_ms
from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import FATAL, make_producer, told
from jobstream.schemas.codec import VALUE_BYTES_MAX, encode
from jobstream.schemas.commands import CancelJob, SubmitJob
from jobstream.schemas.envelope import Envelope, format_time, to_headers
from jobstream.topics.catalogue import SUBMISSIONS, full_name

log = logging.getLogger(__name__)

SOURCE: Final = "/jobstream/api"
LINGER_MS: Final = 1  # requests of the same moment share a batch, and so one sync of the disk
ACK_TIMEOUT_S: Final = 10.0  # a broker that restarts is back in 5 s; a client does not wait for longer
FLUSH_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.5
UNKNOWN: Final = (
    "Kafka did not confirm the command in time, so whether it was taken is unknown. "
    "Sending it again is safe with the same Idempotency-Key; without a key it could make a second job"
)
UNKNOWN_CANCEL: Final = (
    "Kafka did not confirm the command in time, so whether it was taken is unknown. Sending a cancel again is safe"
)
NOT_SENT: Final = "Kafka does not answer; the command was not taken. Try again"

Acknowledged = asyncio.Future[None]


class Commands:
    """Sends commands and waits for their acknowledgement by all in-sync replicas."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = full_name(settings.topic_prefix, SUBMISSIONS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="api-producer", daemon=True)
        self._done: deque[tuple[Acknowledged, KafkaError | None]] = deque()
        self._waking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: Producer | None = None

    def start(self) -> None:
        """From the event loop's thread. Kafka may be away: the client goes on trying."""
        self._loop = asyncio.get_running_loop()
        self._producer = self._make_producer()
        self._thread.start()

    def stop(self) -> None:
        """Send what is still queued, for a bounded time. Blocks."""
        if self._producer is not None:
            self._stopping.set()
            self._thread.join(POLL_S + 1)
            if left := self._producer.flush(FLUSH_TIMEOUT_S):
                log.error("%d commands were not confirmed by Kafka before the stop", left)

    async def send(self, command: SubmitJob | CancelJob, *, command_id: str, traceparent: str | None) -> None:
        """Returns when Kafka has it. Raises Problem 503 where it has not, or where that is unknown."""
        assert self._loop is not None and self._producer is not None, "not started"
        value = encode(command)
        if len(value) > VALUE_BYTES_MAX:
            raise Problem(413, f"the command has {len(value)} bytes as a record; {VALUE_BYTES_MAX} at most")
        envelope = Envelope(
            id=command_id,
            type=command.TYPE,
            source=SOURCE,
            time=format_time(wall_ms()),
            traceparent=traceparent,
        )
        acknowledged: Acknowledged = self._loop.create_future()
        try:
            self._producer.produce(
                self._topic,
                value,
                command.tenant,
                headers=list(to_headers(envelope)),
                on_delivery=lambda error, message: self._delivered(acknowledged, error, message),
            )
        except (BufferError, KafkaException) as error:
            log.warning("a command could not be queued for Kafka: %s", error)
            raise Problem(503, NOT_SENT) from None
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                await acknowledged
        except (TimeoutError, KafkaException) as error:
            log.warning("the command %s was not confirmed by Kafka: %s", command_id, error or "no answer in time")
            raise Problem(503, UNKNOWN if isinstance(command, SubmitJob) else UNKNOWN_CANCEL) from None

    def metadata(self, timeout_s: float) -> ClusterMetadata:
        """What topics there are. Blocks; raises KafkaException."""
        assert self._producer is not None, "not started"
        found: ClusterMetadata = self._producer.list_topics(timeout=timeout_s)
        return found

    def _poll(self) -> None:
        assert self._producer is not None
        while not self._stopping.is_set():
            try:
                self._producer.poll(POLL_S)
            except FATAL as error:  # a producer with a fatal error takes nothing any more
                log.error("the producer has failed for good and is replaced: %s", told(error))
                self._producer = self._make_producer()

    def _delivered(self, acknowledged: Acknowledged, error: KafkaError | None, _: Message) -> None:
        """In the polling thread. Wakes the loop once for all deliveries that it has not fetched yet.

        Append, then look at the flag; `_settle` clears the flag, then fetches: so no delivery is left behind.
        """
        assert self._loop is not None
        self._done.append((acknowledged, error))
        if not self._waking and not self._loop.is_closed():
            self._waking = True
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._waking = False
        while self._done:
            acknowledged, error = self._done.popleft()
            if acknowledged.done():
                continue  # the request has given up
            if error is None:
                acknowledged.set_result(None)
            else:
                acknowledged.set_exception(KafkaException(error))

    def _make_producer(self) -> Producer:
        return make_producer(self._settings, linger_ms=LINGER_MS)
