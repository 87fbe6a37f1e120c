"""Kafka clients as this project uses them: their properties in one place, and waits that are bounded."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import Unavailable

log = logging.getLogger(__name__)

METADATA_TIMEOUT_S: Final = 10.0  # a broker that is up answers in milliseconds; one that restarts needs seconds
LEADERLESS: Final = frozenset(
    (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._UNKNOWN_PARTITION,
    )
)
LEADERLESS_WAIT_S: Final = 0.1
DELIVERY_TIMEOUT_MS: Final = 30_000
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024  # of one partition in librdkafka's queue: 100 partitions stay bounded
BATCH_RECORDS_MAX: Final = 2_000
# How a client's call tells of a fatal error, such as being fenced: raised out of `poll`, `flush` or `produce`, and never by
# `error_cb`. Python makes a SystemError of it where a delivery callback was still to be called in the same poll.
FATAL: Final = (KafkaException, SystemError)

Answer = TypeVar("Answer")
Properties = dict[str, Any]


def base_properties(settings: Settings) -> Properties:
    """What every client has. A user's own properties (SASL, TLS, …) win over these, not over what safety needs (acks, …)."""
    return {
        "bootstrap.servers": settings.kafka,
        "client.id": "jobstream",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 60_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,  # a broker that comes back is found within a second
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "log.connection.close": False,
        **settings.kafka_properties,
    }


def make_admin(settings: Settings, **more: Any) -> AdminClient:
    return AdminClient({**base_properties(settings), **more})


def ask_cluster(settings: Settings, question: Callable[[AdminClient], Answer]) -> Answer:
    """What an admin client finds out; raises Unavailable, with the client's own last word on why, where it fails."""
    troubles: list[str] = []

    def keep(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # follows each of the others, and says less
            troubles[:] = [error.str()]

    # log_level 0: it would print a line for each of its attempts, 40 a second
    admin = make_admin(settings, log_level=0, error_cb=keep)
    try:
        return question(admin)
    except KafkaException as error:
        admin.poll(0)  # serves `keep`
        reason = "; ".join([error.args[0].str(), *troubles])
        raise Unavailable(f"Kafka at {settings.kafka} does not answer or refuses: {reason}") from None


def make_producer(settings: Settings, *, linger_ms: int = 0) -> Producer:
    """A plain idempotent producer: acknowledged by all in-sync replicas, keys placed as the Java client does."""
    return Producer(
        {
            **base_properties(settings),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": linger_ms,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "partitioner": "murmur2_random",
            "message.max.bytes": 4 * 1024 * 1024,
            "compression.type": "lz4",
            "error_cb": log_error,
        },
        logger=log,
    )


def make_consumer(settings: Settings, *, group: str, committed: bool, **more: Any) -> Consumer:
    """A consumer whose offsets the caller manages; `committed`: read only what transactions have committed."""
    return Consumer(
        {
            **base_properties(settings),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "check.crcs": True,
            "fetch.wait.max.ms": 500,  # a record ends the wait at once; idle clients ask seldom
            "fetch.error.backoff.ms": 50,
            "fetch.message.max.bytes": FETCH_BYTES_MAX,
            "queued.max.messages.kbytes": 64 * 1024,
            "error_cb": log_error,
            **more,
        },
        logger=log,
    )


def log_error(error: KafkaError) -> None:
    """A client's own troubles: it retries by itself, so that this is for operators only."""
    log.warning("kafka client: %s", error.str())


def told(raised: KafkaException | SystemError) -> KafkaError:
    """What a client's call raised, see FATAL; raises it again where Kafka is not the reason."""
    error = raised if isinstance(raised, KafkaException) else raised.__cause__
    if not isinstance(error, KafkaException):
        raise raised
    reason: KafkaError = error.args[0]
    return reason


def poll_batch(consumer: Consumer, timeout_s: float, records_max: int = BATCH_RECORDS_MAX) -> list[Message]:
    """Wait for one record, then take what else is there. (`consume(n, t)` would wait for n records or all of t.)"""
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    return [first, *consumer.consume(records_max - 1, timeout=0)] if records_max > 1 else [first]


def partitions_of(consumer: Consumer, topics: Iterable[str]) -> dict[str, int]:
    """Number of partitions of each topic; raises Unavailable where one is missing or the cluster does not answer."""
    counts: dict[str, int] = {}
    for topic in topics:
        try:
            metadata = consumer.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            raise Unavailable(f"Kafka does not answer: {error.args[0].str()}") from error
        if metadata.error is not None or not metadata.partitions:
            raise Unavailable(f"the topic {topic} is missing; run `jobstream topics provision`")
        counts[topic] = len(metadata.partitions)
    return counts


def offsets_at(consumer: Consumer, partitions: Iterable[tuple[str, int]], where: int) -> dict[tuple[str, int], int]:
    """Offsets of many partitions in one request: `where` is OFFSET_BEGINNING, OFFSET_END or a time in ms.

    The end is what a reader at the consumer's isolation level can reach. Ask for it and assign that number:
    assigning OFFSET_END itself resolves late and misses what is produced right after it.
    For a time: the first record at or after it, else the end. Raises Unavailable.
    """
    wanted = [TopicPartition(topic, partition, where) for topic, partition in partitions]
    if not wanted:
        return {}
    found: dict[tuple[str, int], int] = {}
    for answer in _list_offsets(consumer, wanted):
        if answer.offset >= 0:
            found[answer.topic, answer.partition] = answer.offset
    late = [(place.topic, place.partition) for place in wanted if (place.topic, place.partition) not in found]
    if late and where in (OFFSET_BEGINNING, OFFSET_END):
        raise Unavailable(f"Kafka does not tell offsets of {late[0][0]}/{late[0][1]}")
    return {**found, **offsets_at(consumer, late, OFFSET_END)}


def _list_offsets(consumer: Consumer, wanted: list[TopicPartition]) -> list[TopicPartition]:
    """Kafka's ListOffsets takes -1 (OFFSET_END) and -2 (OFFSET_BEGINNING) in the place of a time.

    A partition that was just made, or whose broker just started, has no leader for a moment: asked again for a while.
    """
    deadline = time.monotonic() + METADATA_TIMEOUT_S
    while True:
        try:
            answers = consumer.offsets_for_times(wanted, timeout=METADATA_TIMEOUT_S)
            error = next((answer.error for answer in answers if answer.error is not None), None)
        except KafkaException as raised:
            answers, error = [], raised.args[0]
        if error is None:
            return answers
        if error.code() not in LEADERLESS or time.monotonic() > deadline:
            raise Unavailable(f"Kafka does not tell offsets of {wanted[0].topic}: {error.str()}")
        time.sleep(LEADERLESS_WAIT_S)


def assign_at(consumer: Consumer, offsets: Mapping[tuple[str, int], int]) -> None:
    """Read on from these next offsets."""
    consumer.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()])


def headers_of(message: Message) -> list[tuple[str, bytes | None]] | None:
    """The headers of a record that was read: a list of name and bytes, as the client delivers them."""
    return message.headers()  # type: ignore[return-value]
