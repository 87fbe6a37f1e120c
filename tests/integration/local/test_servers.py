"""Kafka and PostgreSQL under the supervisor: they come back with their data, and are nobody else's."""

import os
import stat
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tests.integration.local.conftest import OwnStack
from tests.stack.waiting import eventually

from jobstream.local import run
from jobstream.local.errors import DataInUse, LocalStackError
from jobstream.local.state import State

RESTART_WITHIN_S = 60.0  # Kafka is back in 5 s on an idle machine
CLIENT_WITHIN_S = 30.0


def make_topic(state: State, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": state["kafka"]})
    made = admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    made[name].result(CLIENT_WITHIN_S)


def write(state: State, topic: str, value: str) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": state["kafka"], "enable.idempotence": True})
    producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(CLIENT_WITHIN_S) == 0
    assert not failed


def read(state: State, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": state["kafka"], "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []

    def collect() -> bool:
        for message in consumer.consume(count - len(values), timeout=1.0):
            if message.error() is None:
                value = message.value()
                assert isinstance(value, bytes)
                values.append(value.decode())
        return len(values) == count

    try:
        eventually(collect, within_s=CLIENT_WITHIN_S, what=f"{count} records of {topic}")
    finally:
        consumer.close()
    return values


def query(state: State, statement: str) -> list[Any]:
    with psycopg.connect(state["postgres"], connect_timeout=5) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def restarted(own: OwnStack, name: str, restarts: int) -> None:
    def check() -> bool:
        child = own.child(name)
        return bool(child["ready"]) and child["restarts"] == restarts

    eventually(check, within_s=RESTART_WITHIN_S, what=f"{name} is ready again")


def test_killed_kafka_comes_back_with_its_records(own_stack: OwnStack) -> None:
    state = own_stack.state()
    make_topic(state, "kept")
    write(state, "kept", "before")
    own_stack.kill("kafka")
    restarted(own_stack, "kafka", restarts=1)
    assert own_stack.state()["kafka"] == state["kafka"]
    write(state, "kept", "after")
    assert read(state, "kept", 2) == ["before", "after"]


def test_killed_postgres_comes_back_with_its_rows(own_stack: OwnStack) -> None:
    state = own_stack.state()
    query(state, "CREATE TABLE kept AS SELECT 'before' AS value")
    own_stack.kill("postgres")
    restarted(own_stack, "postgres", restarts=1)
    assert own_stack.state()["postgres"] == state["postgres"]
    assert query(state, "SELECT value FROM kept") == [("before",)]


def test_second_supervisor_on_the_folder_is_refused(own_stack: OwnStack) -> None:
    supervisor = own_stack.state()["supervisor"]["pid"]
    with pytest.raises(DataInUse, match=f"in use by another local stack .supervisor {supervisor}."):
        run.up(agents=None, data=own_stack.data, detach=False, ready=lambda _: None)
    with pytest.raises(LocalStackError, match=rf"{own_stack.data} is in use .* choose another folder with --data"):
        run.up(agents=None, data=own_stack.data, detach=True, ready=lambda _: None)
    assert own_stack.state()["supervisor"]["pid"] == supervisor


def test_secrets_are_for_this_user_alone(own_stack: OwnStack) -> None:
    layout = own_stack.layout
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (layout.state, layout.postgres_password, layout.ports)}
    assert set(modes.values()) == {0o600}, modes
    folders = (layout.data, layout.logs, layout.socket, layout.postgres, layout.postgres / "data")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folders}
    assert set(modes.values()) == {0o700}, modes
    assert own_stack.state()["postgres"].count(layout.postgres_password.read_text()) == 1


def test_postgres_wants_the_password(own_stack: OwnStack) -> None:
    password = own_stack.layout.postgres_password.read_text()
    wrong = own_stack.state()["postgres"].replace(password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong, connect_timeout=5)


def test_postgres_syncs_and_listens_on_its_socket_alone(own_stack: OwnStack) -> None:
    state = own_stack.state()
    names = ("fsync", "synchronous_commit", "listen_addresses")
    assert [query(state, f"SHOW {name}")[0][0] for name in names] == ["on", "on", ""]
    process = psutil.Process(own_stack.child("postgres")["pid"])  # type: ignore[arg-type]
    assert not [connection for connection in process.net_connections("inet") if connection.status == psutil.CONN_LISTEN]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run PostgreSQL as another user")
def test_postgres_is_not_root_and_no_folder_was_opened_for_it(own_stack: OwnStack) -> None:
    process = psutil.Process(own_stack.child("postgres")["pid"])  # type: ignore[arg-type]
    assert 0 not in process.uids()
    assert 0 not in process.gids()
    closed = own_stack.data.parent
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert closed.stat().st_uid == 0


def test_kafka_listens_on_loopback_alone(own_stack: OwnStack) -> None:
    process = psutil.Process(own_stack.child("kafka")["pid"])  # type: ignore[arg-type]
    listening = [
        connection.laddr.ip for connection in process.net_connections("inet") if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 2
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_kafka_has_the_settings_that_the_design_relies_on(own_stack: OwnStack) -> None:
    broker = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": own_stack.state()["kafka"]})
    described = admin.describe_configs([broker])[broker].result(CLIENT_WITHIN_S)
    found = {name: entry.value for name, entry in described.items()}
    wanted = {
        "auto.create.topics.enable": "false",
        "broker.session.timeout.ms": "2000",
        "message.max.bytes": "4194304",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "transaction.partition.verification.enable": "true",
    }
    assert {name: found[name] for name in wanted} == wanted


def test_logs_name_what_happened(own_stack: OwnStack) -> None:
    assert "Kafka Server started" in (own_stack.layout.logs / "kafka.log").read_text()
    assert "ready to accept connections" in Path(str(own_stack.child("postgres")["log"])).read_text()
