"""Provisioning on a real broker, and that keys go where we say they go."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.stack.isolation import Isolation

from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import make_admin, make_producer
from jobstream.topics.partitioning import partition_of
from jobstream.topics.provisioning import Plan, TopicsDiffer, provision, verify

PARTITIONS = 7


@pytest.fixture
def admin(isolation: Isolation) -> AdminClient:
    return AdminClient({"bootstrap.servers": isolation.kafka})


@pytest.fixture
def plan(isolation: Isolation) -> Plan:
    return Plan(
        prefix=isolation.topic_prefix,
        tenant_partitions=PARTITIONS,
        mailbox_partitions=3,
        replication_factor=1,
        sync_each_write=True,
        producers=("billing",),
    )


def changed(plan: Plan, **fields: int) -> Plan:
    from dataclasses import replace

    return replace(plan, **fields)  # type: ignore[arg-type]


def set_config(admin: AdminClient, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    eventually(lambda: configured(admin, topic, key) == value)


def configured(admin: AdminClient, topic: str, key: str) -> str | None:
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    value: str | None = future.result(30)[key].value
    return value


def eventually(true: Callable[[], bool]) -> None:
    """A broker shows a new configuration some milliseconds after the controller has taken it, and tells nobody."""
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_makes_every_topic_once(admin: AdminClient, plan: Plan) -> None:
    missing = verify(admin, plan)
    assert len(missing) == len(plan.topics()) and all("is missing" in sentence for sentence in missing)
    made = provision(admin, plan)
    assert f"made {plan.prefix}submissions.billing with {PARTITIONS} partitions" in made
    assert f"made {plan.prefix}dispatch with 3 partitions" in made
    assert f"made {plan.prefix}rounds with 1 partitions" in made
    assert provision(admin, plan) == []
    assert verify(admin, plan) == []


@pytest.mark.parametrize("fields", [{"tenant_partitions": 8}, {"mailbox_partitions": 2}])
def test_refuses_what_would_move_keys_before_any_change(admin: AdminClient, plan: Plan, fields: dict[str, int]) -> None:
    provision(admin, plan)
    name = f"{plan.prefix}lifecycle"
    set_config(admin, name, "retention.ms", "1000")
    with pytest.raises(TopicsDiffer, match="would move keys"):
        provision(admin, changed(plan, **fields))
    differences = verify(admin, changed(plan, **fields))
    assert any("would move keys" in sentence for sentence in differences)
    assert f"{name} has retention.ms=1000, not -1" in differences


def test_names_a_replication_factor_that_is_too_low(admin: AdminClient, plan: Plan) -> None:
    provision(admin, plan)
    with pytest.raises(TopicsDiffer, match="has 1 replicas, not 3"):
        provision(admin, changed(plan, replication_factor=3))


def test_corrects_configuration(admin: AdminClient, plan: Plan) -> None:
    provision(admin, plan)
    name = f"{plan.prefix}lifecycle"
    set_config(admin, name, "message.timestamp.type", "CreateTime")
    assert verify(admin, plan) == [f"{name} has message.timestamp.type=CreateTime, not LogAppendTime"]
    assert provision(admin, plan) == [f"set message.timestamp.type=LogAppendTime on {name}"]
    eventually(lambda: verify(admin, plan) == [])


def test_keys_go_where_we_say(isolation: Isolation, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in isolation.environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    provision(make_admin(settings), plan)
    producer = make_producer(settings)
    seen: dict[str, int | None] = {}
    keys = [f"tenant-{number}" for number in range(200)] + ["a", "acme", "x" * 63]

    def delivered(error: object, message: Message) -> None:
        assert error is None
        key = message.key()
        assert isinstance(key, bytes)
        seen[key.decode()] = message.partition()

    for key in keys:
        producer.produce(f"{plan.prefix}submissions", key=key, value=b"", on_delivery=delivered)
    assert producer.flush(30) == 0
    assert seen == {key: partition_of(key, PARTITIONS) for key in keys}
