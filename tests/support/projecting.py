"""A log in Kafka, the projection in Postgres, and how tests wait for the one to reach the other."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaError, Message, Producer
from tests.support.leader_log import Entry
from tests.support.projection import Rows, expected_rows, stored_rows

from jobstream.projector.consumer import Projector
from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import base_properties
from jobstream.runtime.postgres import connect

PATIENCE_S = 60.0

Positions = dict[tuple[str, int], int]
RunProjector = Callable[[], AbstractContextManager[Projector]]
StartProjector = Callable[..., subprocess.Popen[str]]


@dataclass
class Log:
    """Writes the log in transactions, and knows what it holds."""

    settings: Settings
    written: list[tuple[Entry, int]] = field(default_factory=list)
    _producer: Producer | None = None

    def write(self, rounds: Iterable[list[Entry]]) -> None:
        """One transaction for each round; offsets are as the broker gave them."""
        for entries in rounds:
            offsets = self.write_raw([(entry.topic, entry.partition, entry.headers, entry.value) for entry in entries])
            self.written += zip(entries, offsets, strict=True)

    def write_raw(self, records: list[tuple[str, int, Any, bytes | None]]) -> list[int]:
        """One transaction of (topic without prefix, partition, headers, value)."""
        offsets = [-1] * len(records)
        producer = self._transactional()
        producer.begin_transaction()
        for number, (topic, partition, headers, value) in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
                assert error is None, error
                offset = message.offset()
                assert offset is not None
                offsets[number] = offset

            producer.produce(
                self.settings.topic_prefix + topic,
                partition=partition,
                value=value,
                headers=headers,
                on_delivery=delivered,
            )
        producer.commit_transaction(PATIENCE_S)
        return offsets

    @property
    def ends(self) -> Positions:
        """The next offset that a projector comes to in each partition."""
        return {(entry.topic, entry.partition): offset + 1 for entry, offset in self.written}

    def rows(self) -> Rows:
        return expected_rows(self.written)

    def _transactional(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **base_properties(self.settings),
                    "transactional.id": f"{self.settings.topic_prefix}leader",
                    "retry.backoff.ms": 2,
                }
            )
            self._producer.init_transactions(PATIENCE_S)
        return self._producer


@contextmanager
def run_projector(settings: Settings) -> Iterator[Projector]:
    """A projector in a thread of this process until the context ends; raises what it raised."""
    stop = threading.Event()
    projector = Projector(settings, stop)
    failures: list[BaseException] = []

    def body() -> None:
        try:
            projector.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield projector
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def stored_positions(connection: psycopg.Connection[Any]) -> Positions:
    cursor = connection.execute("SELECT topic, partition, next_offset FROM projection_offsets WHERE next_offset > 0")
    return {(topic, partition): offset for topic, partition, offset in cursor}


def wait_for_positions(settings: Settings, wanted: Positions) -> None:
    """Until the projection has come to these offsets; woken by its notifications."""
    wait_until(settings, lambda connection: stored_positions(connection).items() >= wanted.items())


def wait_until(settings: Settings, true: Callable[[psycopg.Connection[Any]], bool]) -> None:
    """Until something holds in the database; looked at on each notification, and twice a second for what sends none."""
    until = time.monotonic() + PATIENCE_S
    with connect(settings, autocommit=True) as connection:
        connection.execute(f"LISTEN {settings.postgres_schema}_projected".encode())
        while not true(connection):
            assert time.monotonic() < until, f"not in {PATIENCE_S} s; positions are {stored_positions(connection)}"
            for _ in connection.notifies(timeout=0.5, stop_after=1):
                pass


def assert_rows(connection: psycopg.Connection[Any], log: Log) -> None:
    """The database holds what the log says: each event applied exactly once."""
    stored, expected = stored_rows(connection), log.rows()
    for table in expected:
        assert stored[table] == expected[table]
    assert {key: offset for key, offset in stored_positions(connection).items() if offset} == log.ends
