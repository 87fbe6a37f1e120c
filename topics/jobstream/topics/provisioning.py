"""Make the topics as the catalogue says, and tell where a cluster differs. Idempotent; never moves a key."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from jobstream.topics.catalogue import CELLS, TOPICS, VALUE_BYTES_MAX, Topic, full_name, upstream

ADMIN_TIMEOUT_S = 30  # a broker that has just started answers its first request after several seconds
LEADER_WAIT_S = 0.05  # a new partition has its leader within a few of these


class TopicsDiffer(Exception):
    """The cluster holds topics that cannot be used as they are; `differences` has a sentence for each."""

    def __init__(self, differences: Iterable[str]) -> None:
        self.differences = tuple(differences)
        super().__init__("; ".join(self.differences))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How topics are made. Counts of partitions stay as they are for the life of a cluster's topics."""

    prefix: str
    tenant_partitions: int
    mailbox_partitions: int
    replication_factor: int
    sync_each_write: bool  # flush.messages=1 on durable topics: for a broker without replicas
    producers: tuple[str, ...] = ()

    def topics(self) -> tuple[Topic, ...]:
        return TOPICS + tuple(upstream(name) for name in self.producers)

    def partitions(self, topic: Topic) -> int:
        if topic.key == "mailbox":
            return self.mailbox_partitions
        return CELLS if topic.key == "cell" else self.tenant_partitions

    def configuration(self, topic: Topic) -> dict[str, str]:
        wanted = {
            "retention.ms": str(topic.retention_ms),
            "cleanup.policy": "delete",
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(VALUE_BYTES_MAX),
            "min.insync.replicas": str(max(1, self.replication_factor - 1)),
            "unclean.leader.election.enable": "false",
        }
        if self.sync_each_write and topic.durable:
            wanted["flush.messages"] = "1"
        return wanted


def provision(admin: AdminClient, plan: Plan) -> list[str]:
    """Make what is missing, correct configuration that differs; returns a sentence for each change.

    Raises TopicsDiffer before any change where a partition count or a replication factor differs, KafkaException
    where the cluster does not answer or refuses.
    """
    found = describe(admin, plan)
    if blocked := immovable(plan, found):
        raise TopicsDiffer(blocked)
    missing = [topic for topic in plan.topics() if full_name(plan.prefix, topic) not in found]
    if missing:
        _make(admin, plan, missing)
    made = [f"made {full_name(plan.prefix, topic)} with {plan.partitions(topic)} partitions" for topic in missing]
    return made + correct_configuration(admin, plan, set(found))


def _make(admin: AdminClient, plan: Plan, topics: list[Topic]) -> None:
    """Make topics and wait until each partition has a leader: before that, readers are told that there is none."""
    wanted = [
        NewTopic(
            full_name(plan.prefix, topic),
            num_partitions=plan.partitions(topic),
            replication_factor=plan.replication_factor,
            config=plan.configuration(topic),
        )
        for topic in topics
    ]
    for name, future in admin.create_topics(wanted, request_timeout=ADMIN_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another provisioning was faster
                raise KafkaException(error.args[0]) from RuntimeError(f"could not make the topic {name}")
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while _leaderless(admin, plan, topics) and time.monotonic() < deadline:
        time.sleep(LEADER_WAIT_S)


def _leaderless(admin: AdminClient, plan: Plan, topics: list[Topic]) -> bool:
    metadata = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    found = [metadata.get(full_name(plan.prefix, topic)) for topic in topics]
    return any(
        topic is None or not topic.partitions or any(partition.leader < 0 for partition in topic.partitions.values())
        for topic in found
    )


def verify(admin: AdminClient, plan: Plan) -> list[str]:
    """A sentence for each way in which the cluster differs from the plan; empty where it fits."""
    found = describe(admin, plan)
    differences = [
        f"{full_name(plan.prefix, topic)} is missing"
        for topic in plan.topics()
        if full_name(plan.prefix, topic) not in found
    ]
    differences += immovable(plan, found)
    for name, entries in wrong_configuration(admin, plan, set(found)).items():
        differences += [f"{name} has {key}={was}, not {wanted}" for key, (was, wanted) in entries.items()]
    return differences


def describe(admin: AdminClient, plan: Plan) -> dict[str, tuple[int, int]]:
    """Partition count and replication factor of each topic of the plan that exists."""
    metadata = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    names = [full_name(plan.prefix, topic) for topic in plan.topics()]
    return {
        name: (
            len(metadata[name].partitions),
            min((len(partition.replicas) for partition in metadata[name].partitions.values()), default=0),
        )
        for name in names
        if name in metadata and metadata[name].error is None
    }


def immovable(plan: Plan, found: Mapping[str, tuple[int, int]]) -> list[str]:
    sentences = []
    for topic in plan.topics():
        name, partitions = full_name(plan.prefix, topic), plan.partitions(topic)
        if name not in found:
            continue
        has_partitions, has_replicas = found[name]
        if has_partitions != partitions:
            sentences.append(
                f"{name} has {has_partitions} partitions, not {partitions}: a change would move keys to other "
                "partitions; keep the count, or use another topic prefix"
            )
        if has_replicas < plan.replication_factor:
            sentences.append(
                f"{name} has {has_replicas} replicas, not {plan.replication_factor}: reassign its partitions with "
                "Kafka's own tools"
            )
    return sentences


def wrong_configuration(admin: AdminClient, plan: Plan, existing: set[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """For each existing topic the entries that differ: name → (is, wanted)."""
    resources = {
        ConfigResource(ResourceType.TOPIC, full_name(plan.prefix, topic)): topic
        for topic in plan.topics()
        if full_name(plan.prefix, topic) in existing
    }
    if not resources:
        return {}
    wrong: dict[str, dict[str, tuple[str, str]]] = {}
    for resource, future in admin.describe_configs(list(resources), request_timeout=ADMIN_TIMEOUT_S).items():
        entries = future.result()
        wanted = plan.configuration(resources[resource])
        differs = {
            key: (str(entries[key].value), value) for key, value in wanted.items() if entries[key].value != value
        }
        if differs:
            wrong[resource.name] = differs
    return wrong


def correct_configuration(admin: AdminClient, plan: Plan, existing: set[str]) -> list[str]:
    wrong = wrong_configuration(admin, plan, existing)
    if not wrong:
        return []
    altered = [
        ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(key, wanted, incremental_operation=AlterConfigOpType.SET)
                for key, (_, wanted) in entries.items()
            ],
        )
        for name, entries in wrong.items()
    ]
    for future in admin.incremental_alter_configs(altered, request_timeout=ADMIN_TIMEOUT_S).values():
        future.result()
    return [f"set {key}={wanted} on {name}" for name, entries in wrong.items() for key, (_, wanted) in entries.items()]
