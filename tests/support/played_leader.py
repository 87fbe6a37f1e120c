"""A leader and a projector in one, for tests of the API alone: it reads `submissions` and writes rows as they would."""

import threading
import time
from types import TracebackType
from typing import Any, Self

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from jobstream.runtime.config import Settings
from jobstream.runtime.postgres import connection_arguments
from jobstream.schemas.codec import decode, digest_of, encode
from jobstream.schemas.commands import CancelJob, SubmitJob
from jobstream.schemas.envelope import Envelope, from_headers
from jobstream.schemas.states import PRIORITIES, TERMINAL
from jobstream.topics.catalogue import SUBMISSIONS, full_name
from jobstream.topics.partitioning import partition_of

INSERT_JOB = """
INSERT INTO jobs (tenant, job_id, name, queue, priority, status, spec, digest, idempotency_key, created_at, accepted,
    log_partition, first_offset, last_offset)
VALUES (%(tenant)s, %(job_id)s, %(name)s, %(queue)s, %(priority)s, %(status)s, %(spec)s, %(digest)s, %(key)s,
    coalesce(%(created_at)s, now()), 0, %(partition)s, %(offset)s, %(offset)s)
ON CONFLICT DO NOTHING
"""


class PlayedLeader:
    """Runs in a thread. `commands` is all it has read; while `held` is set it reads on and answers nothing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.commands: list[tuple[Envelope, SubmitJob | CancelJob]] = []
        self.held = threading.Event()
        self.on_cancel: Any = None  # called with the command before it is answered
        self._stop = threading.Event()
        self._offset = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._rows = psycopg.connect(**connection_arguments(settings), autocommit=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self._rows.close()

    def execute(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """One statement on the projection, and a notification."""
        with psycopg.connect(**connection_arguments(self.settings), autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters)
            rows = cursor.fetchall() if cursor.description else []
            self._notify(connection)
        return rows

    def insert_job(self, submitted: SubmitJob, **more: Any) -> None:
        with psycopg.connect(**connection_arguments(self.settings), autocommit=True) as connection:
            self._insert(connection, submitted, **more)
            self._notify(connection)

    def wait_for(self, count: int, timeout_s: float = 10.0) -> list[tuple[Envelope, SubmitJob | CancelJob]]:
        """Until so many commands were read."""
        until = time.monotonic() + timeout_s
        while len(self.commands) < count and time.monotonic() < until:
            time.sleep(0.01)
        assert len(self.commands) >= count, f"{len(self.commands)} of {count} commands"
        return self.commands

    def _run(self) -> None:
        topic = full_name(self.settings.topic_prefix, SUBMISSIONS)
        consumer = Consumer(
            {"bootstrap.servers": self.settings.kafka, "group.id": "played", "isolation.level": "read_committed"}
            | {"enable.auto.commit": False, "fetch.wait.max.ms": 5}
        )
        count = self.settings.tenant_partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)])
        waiting: list[tuple[Envelope, SubmitJob | CancelJob]] = []
        while not self._stop.is_set():
            for record in consumer.consume(500, timeout=0.005):
                assert record.error() is None, record.error()
                envelope = from_headers(record.headers())  # type: ignore[arg-type]
                command = decode(envelope.type, record.value())
                assert isinstance(command, SubmitJob | CancelJob)
                assert record.partition() == partition_of(command.tenant, count)
                waiting.append((envelope, command))
                self.commands.append((envelope, command))
            if waiting and not self.held.is_set():
                with self._rows.transaction():
                    for envelope, command in waiting:
                        self._answer(envelope.id, command)
                    self._notify(self._rows)
                waiting = []
        consumer.close()

    def _answer(self, command_id: str, command: SubmitJob | CancelJob) -> None:
        if isinstance(command, SubmitJob):
            self._insert(self._rows, command)
            found = self._rows.execute(
                "SELECT digest FROM jobs WHERE tenant = %s AND job_id = %s", [command.tenant, command.job_id]
            ).fetchone()
            assert found is not None
            if found[0] != digest_of(command.spec):
                self._refuse(command_id, command, "conflict")
            return
        if self.on_cancel is not None:
            self.on_cancel(command)
        row = self._rows.execute(
            "SELECT status, cancel_requested FROM jobs WHERE tenant = %s AND job_id = %s FOR UPDATE",
            [command.tenant, command.job_id],
        ).fetchone()
        if row is None:
            self._refuse(command_id, command, "unknown_job")
        elif row[0] in TERMINAL:
            self._refuse(command_id, command, "ended")
        elif row[1]:
            self._refuse(command_id, command, "already_requested")
        else:
            change = "status = 'cancelled', ended_at = now()" if row[0] == "queued" else "cancel_requested = true"
            self._rows.execute(
                f"UPDATE jobs SET {change}, last_offset = last_offset + 1 WHERE tenant = %s AND job_id = %s".encode(),
                [command.tenant, command.job_id],
            )

    def _insert(self, connection: psycopg.Connection[Any], command: SubmitJob, **more: Any) -> None:
        self._offset += 1
        spec = command.spec
        values = {
            "tenant": command.tenant,
            "job_id": command.job_id,
            "name": spec.name,
            "queue": spec.queue,
            "priority": PRIORITIES.index(spec.priority),
            "status": "queued",
            "spec": encode(spec).decode(),
            "digest": digest_of(spec),
            "key": command.idempotency_key,
            "created_at": None,
            "partition": partition_of(command.tenant, self.settings.tenant_partitions),
            "offset": self._offset,
        }
        connection.execute(INSERT_JOB, values | more)

    def _refuse(self, command_id: str, command: SubmitJob | CancelJob, code: str) -> None:
        self._rows.execute(
            "INSERT INTO command_refusals VALUES (%s, %s, %s, %s, %s, now()) ON CONFLICT DO NOTHING",
            [command.tenant, command_id, command.job_id, code, f"played: {code}"],
        )

    def _notify(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("SELECT pg_notify(%s, '')", [f"{self.settings.postgres_schema}_projected"])
