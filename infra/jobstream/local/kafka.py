"""A single Kafka node (KRaft: broker and controller in one process) on loopback ports."""

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from jobstream.local import state
from jobstream.local.errors import LocalStackError
from jobstream.local.java import Java, Progress, locked
from jobstream.local.paths import Layout
from jobstream.local.process import Command, die_with_parent, spawn

CONFIG = "server.properties"
TEMPORARY = "tmp"  # in its working directory
FORMAT_TIMEOUT_S = 60  # it takes 1 to 3 s
TRAIN_READY_S = 60  # it takes 6 to 10 s
TRAIN_END_S = 120  # it takes 1 s, and the making of the cache 10 s
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


def command(folder: Path, java: Java, port: int, controller_port: int, *flags: str) -> Command:
    """The node's command, once its configuration has been written and, the first time, its log folder formatted (1 to 3 s).

    `flags` are the JVM's, beside our own. Raises LocalStackError when the log folder cannot be formatted.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    bootstrap = f"127.0.0.1:{port}"
    settings = (
        SETTINGS
        | {
            "listeners": f"PLAINTEXT://{bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{bootstrap}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "log.dirs": "data",  # in its working directory: a path of the user's may have commas, or letters that need escapes
        }
    )
    # Native libraries are unpacked there, and stay when the JVM is killed: in our own folder, emptied by each start.
    shutil.rmtree(folder / TEMPORARY, ignore_errors=True)
    (folder / TEMPORARY).mkdir(mode=0o700)
    (folder / CONFIG).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    jvm = java.command(
        f"-Djava.io.tmpdir={TEMPORARY}",
        *flags,
        *(f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in LOG.items()),
    )
    if not (folder / "data" / "meta.properties").exists():  # what formatting writes last
        _format(jvm, folder)
    return Command(argv=[*jvm, "kafka.Kafka", CONFIG], env=ENVIRONMENT, cwd=folder)


def ready(bootstrap: str) -> bool:
    """Whether the broker is in its cluster, as a client sees it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        # log_level 0: that nobody listens yet is no news here
        return bool(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=1.0).brokers)
    except KafkaException:
        return False


def train(java: Java, progress: Progress) -> None:
    """Make the JVM's start-up cache, once, by starting and stopping a node in a folder of its own (20 s).

    A start then costs 4 s of CPU instead of 8. When it cannot be made, starts stay slow, and that is said.
    """
    if java.trained:
        return
    with locked(java.aot.with_name("lock"), progress), tempfile.TemporaryDirectory(prefix="jobstream-train-") as folder:
        if java.trained:
            return
        progress("preparing Kafka for faster starts (20 s, once)")
        made = java.aot.with_name(f"{java.aot.name}.{os.getpid()}")
        try:
            _run_once(Path(folder), java, made)
            made.replace(java.aot)
        except (OSError, LocalStackError, subprocess.SubprocessError) as error:
            progress(f"Kafka's starts stay slow: its start-up cache could not be made ({error})")
            java.aot.touch()
        finally:
            made.unlink(missing_ok=True)


def _run_once(folder: Path, java: Java, cache: Path) -> None:
    """Record what a node loads from start to stop, then make the cache of it; both as children of this process."""
    ports = state.ports(Layout(data=folder), ("kafka", "controller"))
    recorded = folder / "recorded"
    node = command(
        folder / "kafka",
        java,
        ports["kafka"],
        ports["controller"],
        "-XX:AOTMode=record",
        f"-XX:AOTConfiguration={recorded}",
    )
    with (folder / "log").open("wb") as log:
        process = spawn(node, log.fileno())
        try:
            deadline = time.monotonic() + TRAIN_READY_S
            while not ready(f"127.0.0.1:{ports['kafka']}"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LocalStackError("the node did not start")
            process.terminate()
            process.wait(TRAIN_END_S)
        finally:
            process.kill()
            process.wait()
        make = java.command("-XX:AOTMode=create", f"-XX:AOTConfiguration={recorded}", f"-XX:AOTCache={cache}")
        subprocess.run(
            make, check=True, timeout=TRAIN_END_S, stdout=log, stderr=log, env=ENVIRONMENT, preexec_fn=die_with_parent()
        )


def _format(jvm: list[str], folder: Path) -> None:
    # A first byte of our own: an id that begins with a hyphen would be taken for an option.
    cluster = urlsafe_b64encode(b"j" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    argv = [*jvm, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", CONFIG, "--ignore-formatted"]
    done = subprocess.run(
        argv,
        text=True,
        capture_output=True,
        timeout=FORMAT_TIMEOUT_S,
        cwd=folder,
        env=ENVIRONMENT,
        preexec_fn=die_with_parent(),
    )
    if done.returncode != 0:
        raise LocalStackError(
            f"Kafka's log folder {folder} cannot be formatted: {(done.stderr or done.stdout).strip()[-2000:]}"
        )
