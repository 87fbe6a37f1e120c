"""Kafka and PostgreSQL 18 in containers, for machines with a Docker engine; Kafka with the settings of the local stack."""

import socket
from typing import Any

from jobstream.local.java import KAFKA_VERSION
from jobstream.local.kafka import SETTINGS

KAFKA_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
POSTGRES_IMAGE = "postgres:18"
READY_WITHIN_S = 120.0  # the first run pulls nothing in this time, only starts


def start() -> dict[str, Any]:
    """Start both; the description has `kafka`, `postgres`, and `containers`: their ids."""
    from testcontainers.community.postgres import PostgresContainer
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    kafka = DockerContainer(KAFKA_IMAGE)
    host, port = kafka.get_container_host_ip(), _free_port()  # a broker tells its clients its address: known beforehand
    settings = SETTINGS | {
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": "1@localhost:9093",
    }
    for name, value in settings.items():
        kafka.with_env(f"KAFKA_{name.replace('.', '_').upper()}", value)
    kafka.with_bind_ports(9092, port)
    kafka.waiting_for(LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(int(READY_WITHIN_S)))
    kafka.start()
    postgres = PostgresContainer(
        POSTGRES_IMAGE, driver=None, username="jobstream", password="jobstream", dbname="jobstream"
    )
    postgres.with_command("postgres -c max_connections=200")
    postgres.start()
    return {
        "kafka": f"{host}:{port}",
        "postgres": postgres.get_connection_url(),
        "containers": [kafka.get_wrapped_container().id, postgres.get_wrapped_container().id],
    }


def stop(described: dict[str, Any]) -> None:
    """Remove what `start` has started."""
    from testcontainers.core.docker_client import DockerClient

    client = DockerClient().client
    for container in described["containers"]:
        client.containers.get(container).remove(force=True, v=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
