"""A single Kafka node (KRaft: broker and controller in one process) on loopback ports."""

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from jobstream.local.errors import LocalStackError
from jobstream.local.java import Java
from jobstream.local.paths import Layout
from jobstream.local.process import Command, die_with_parent

FORMAT_TIMEOUT_S = 60  # it takes 1 to 3 s
# Heap: 320 MB resident in all. Serial collector: the fastest start, and the others want more than two cores.
JVM = ("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")
LOG = {
    "defaultLogLevel": "warn",
    "showDateTime": "true",
    "dateTimeFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    "log.kafka.server.KafkaRaftServer": "info",
}
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(4 * 1024 * 1024),
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",  # the default, 50, is made for many brokers
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # After a kill -9 the broker is refused until its former session has ended: 5 s to be back, 12 s by default.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # A transaction that hangs holds readers until it is aborted: up to 10 s longer by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.partition.verification.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",  # the leader uses 6 s, tests less
    "log.retention.check.interval.ms": "60000",
}


def command(layout: Layout, java: Java, port: int, controller_port: int) -> Command:
    """The node's command, once its configuration has been written and, the first time, its log folder formatted (1 to 3 s).

    Raises LocalStackError when the log folder cannot be formatted.
    """
    data = layout.kafka / "data"
    config = layout.kafka / "server.properties"
    layout.kafka.mkdir(mode=0o700, exist_ok=True)
    bootstrap = f"127.0.0.1:{port}"
    settings = SETTINGS | {
        "listeners": f"PLAINTEXT://{bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{bootstrap}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": str(data),
    }
    config.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()))
    jvm = java.command(*JVM, *(f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in LOG.items()))
    if not (data / "meta.properties").exists():
        _format(jvm, config, data)
    return Command(argv=[*jvm, "kafka.Kafka", str(config)], env=ENVIRONMENT, cwd=layout.kafka)


def ready(bootstrap: str) -> bool:
    """Whether the broker is in its cluster, as a client sees it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        # log_level 0: that nobody listens yet is no news here
        return bool(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=1.0).brokers)
    except KafkaException:
        return False


def _format(jvm: list[str], config: Path, data: Path) -> None:
    # A first byte of our own: an id that begins with a hyphen would be taken for an option.
    cluster = urlsafe_b64encode(b"j" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    argv = [*jvm, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config), "--ignore-formatted"]
    done = subprocess.run(
        argv, text=True, capture_output=True, timeout=FORMAT_TIMEOUT_S, env=ENVIRONMENT, preexec_fn=die_with_parent()
    )
    if done.returncode != 0:
        raise LocalStackError(
            f"Kafka's log folder {data} cannot be formatted: {(done.stderr or done.stdout).strip()[-2000:]}"
        )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")
