"""The API under a real uvicorn, in a thread, on the real Kafka and Postgres; leader and projector are played."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx
import pytest
import uvloop
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pydantic import SecretStr
from tests.stack.isolation import isolated
from tests.stack.provide import Stack
from tests.support.played_leader import PlayedLeader

from jobstream.api.__main__ import listen
from jobstream.api.admin import admin_init
from jobstream.api.app import make_app
from jobstream.api.server import make_server
from jobstream.projector.migrate import migrate
from jobstream.runtime.config import LeaseSettings, Settings
from jobstream.topics.provisioning import provision

PARTITIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A running API: clients of two tenants and of an admin, and who plays the leader."""

    url: str
    settings: Settings
    leader: PlayedLeader
    alice: httpx.Client
    bob: httpx.Client
    admin: httpx.Client
    alice_key: str

    def written(self) -> int:
        """How many records `submissions` holds."""
        return records_in(self.settings)


@cache
def admin_client(kafka: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka})


def records_in(settings: Settings) -> int:
    admin = admin_client(settings.kafka)
    topic = f"{settings.topic_prefix}submissions"
    newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, number): newest for number in range(PARTITIONS)}
    until = time.monotonic() + 10
    while True:
        try:
            return sum(found.result().offset for found in admin.list_offsets(wanted).values())
        except KafkaException as error:
            # A fresh topic: this client's metadata is older than its leaders.
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            assert time.monotonic() < until, error
            time.sleep(0.1)


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """Run the API; gives its address."""
    app = make_app(settings)
    server = make_server(app)
    listener = listen(settings)

    def serve() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 20
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        assert server.started
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def client(url: str, key: str | None = None) -> Iterator[httpx.Client]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as made:
        yield made


@pytest.fixture(scope="module")
def settings(
    stack: Stack, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """Topics and tables of this module's own."""
    with isolated(stack, request.module.__name__.rpartition(".")[2]) as names:
        made = make_settings(stack, names.topic_prefix, names.schema, tmp_path_factory.mktemp("logs"))
        provision(admin_client(stack.kafka), made.plan())
        migrate(made)
        yield made


def make_settings(stack: Stack, prefix: str, schema: str, logs: Path) -> Settings:
    return Settings(
        kafka=stack.kafka,
        postgres=SecretStr(stack.postgres),
        postgres_schema=schema,
        topic_prefix=prefix,
        tenant_partitions=PARTITIONS,
        mailbox_partitions=2,
        replication_factor=1,
        unsafe_replication=True,
        api_port=0,
        logs_url=logs.as_uri(),
        read_own_write_ms=5_000,
        lease=LeaseSettings(),
    )


@pytest.fixture(scope="module")
def running(settings: Settings) -> Iterator[Api]:
    keys = admin_init(settings, tenant="alice")
    with (
        PlayedLeader(settings) as leader,
        served(settings) as url,
        client(url, keys["admin_key"]) as admin,
        client(url, keys["api_key"]) as alice,
    ):
        assert admin.post("/api/v1/tenants", json={"tenant": "bob"}).status_code == 201
        bobs = admin.post("/api/v1/tenants/bob/keys", json={"name": "bob's"}).json()
        with client(url, bobs["api_key"]) as bob:
            yield Api(
                url=url, settings=settings, leader=leader, alice=alice, bob=bob, admin=admin, alice_key=keys["api_key"]
            )


@pytest.fixture
def api(running: Api) -> Iterator[Api]:
    running.leader.held.clear()
    running.leader.on_cancel = None
    yield running
    running.leader.held.clear()
