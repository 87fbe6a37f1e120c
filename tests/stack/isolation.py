"""Names of a test's own on a shared stack."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import psycopg.sql
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.stack.provide import Stack

ADMIN_TIMEOUT_S = 30.0  # a busy broker that deletes hundreds of partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """`topic_prefix` ends with a dot; `schema` does not exist yet; `environment` is what a service is to be told."""

    topic_prefix: str
    schema: str
    kafka: str
    postgres: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "JOBSTREAM_KAFKA": self.kafka,
            "JOBSTREAM_POSTGRES": self.postgres,
            "JOBSTREAM_TOPIC_PREFIX": self.topic_prefix,
            "JOBSTREAM_SCHEMA": self.schema,
            "JOBSTREAM_REPLICATION_FACTOR": "1",
            "JOBSTREAM_UNSAFE_REPLICATION": "true",
        }


@contextmanager
def isolated(stack: Stack, test: str) -> Iterator[Isolation]:
    """Fresh names, which tell the test; topics and schema of these names are removed at the end."""
    name = re.sub(r"[^a-z0-9]+", "_", test.lower()).strip("_")[:24]
    unique = f"{name}_{secrets.token_hex(4)}"
    names = Isolation(topic_prefix=f"t.{unique}.", schema=f"t_{unique}", kafka=stack.kafka, postgres=stack.postgres)
    try:
        yield names
    finally:
        _remove_topics(names)
        with psycopg.connect(names.postgres, autocommit=True, connect_timeout=10) as connection:
            # "name" and "name_…": a service may keep schemas of its own beside its first one
            found = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", [names.schema]
            ).fetchall()
            for (schema,) in found:
                connection.execute(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(psycopg.sql.Identifier(schema)))


def _remove_topics(names: Isolation) -> None:
    admin = AdminClient({"bootstrap.servers": names.kafka})
    found = [
        topic for topic in admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics if topic.startswith(names.topic_prefix)
    ]
    if not found:
        return
    for topic, removed in admin.delete_topics(found, operation_timeout=ADMIN_TIMEOUT_S).items():
        try:
            removed.result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            raise RuntimeError(f"topic {topic} could not be removed") from error
