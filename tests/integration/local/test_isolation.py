"""The fixtures themselves."""

import psycopg
from confluent_kafka.admin import AdminClient
from tests.stack.isolation import Isolation
from tests.stack.provide import Stack


def test_servers_are_the_versions_that_we_promise(stack: Stack) -> None:
    with psycopg.connect(stack.postgres) as connection:
        assert connection.info.server_version // 10_000 == 18
    assert len(AdminClient({"bootstrap.servers": stack.kafka}).list_topics(timeout=10).brokers) == 1


def test_isolation_names_are_unused(isolation: Isolation) -> None:
    topics = AdminClient({"bootstrap.servers": isolation.kafka}).list_topics(timeout=10).topics
    assert not [topic for topic in topics if topic.startswith(isolation.topic_prefix)]
