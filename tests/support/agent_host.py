"""An agent in a process of its own on a real broker, and the leader that the test plays to it."""

import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import OFFSET_END, Consumer
from tests.stack.isolation import Isolation
from tests.stack.waiting import eventually

from jobstream.agent.machine import WORK_FOLDER_FALLBACK, name_of
from jobstream.agent.tree import cgroup_home
from jobstream.runtime.config import LeaseSettings, Settings
from jobstream.runtime.errors import Unavailable
from jobstream.runtime.kafka import assign_at, make_admin, make_consumer, make_producer, offsets_at
from jobstream.runtime.log_store import AttemptLog, LogStore
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import decode, encode
from jobstream.schemas.envelope import Envelope, format_time, from_headers, to_headers
from jobstream.schemas.new_ids import new_event_id, new_job_id
from jobstream.schemas.resources import Resources
from jobstream.topics.catalogue import COMPLETIONS, DEAD_LETTERS, DISPATCH, HEARTBEATS, MACHINES, full_name
from jobstream.topics.partitioning import partition_of
from jobstream.topics.provisioning import provision

M = TypeVar("M", bound=Message)

WITHIN_S = 30.0  # a busy machine; what is waited for comes in milliseconds on an idle one
LEASE = LeaseSettings(
    ttl_ms=4_000, margin_ms=1_000, grace_ms=3_000, heartbeat_ms=1_000, tick_ms=200, broker_jumps=1, stop_ms=1_000
)
PARTITIONS = 2


class AgentHost:
    """One machine. `start` runs its agent; `assign`, `cancel`, `revoke` are the leader's dispatches."""

    def __init__(self, isolation: Isolation, data: Path, **settings: Any) -> None:
        self.settings = Settings(
            kafka=isolation.kafka,
            topic_prefix=isolation.topic_prefix,
            data=data,
            tenant_partitions=PARTITIONS,
            mailbox_partitions=PARTITIONS,
            replication_factor=1,
            unsafe_replication=True,
            **{
                "machine_id": f"m-{secrets.token_hex(4)}",
                "cpu": 4.0,
                "memory_gb": 4.0,
                "kill_grace_ms": 500,
                "lease": LEASE,
                **settings,
            },
        )
        self.data = data
        self.processes: list[subprocess.Popen[bytes]] = []
        self.store = LogStore(self.settings.log_store_url)
        provision(make_admin(self.settings), self.settings.plan())
        self._producer = make_producer(self.settings)
        self._tokens = itertools.count(100)
        self._read: list[Message] = []
        topics = [
            full_name(isolation.topic_prefix, topic) for topic in (MACHINES, HEARTBEATS, COMPLETIONS, DEAD_LETTERS)
        ]
        self._consumer: Consumer = make_consumer(self.settings, group="test", committed=False)
        places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        ends = eventually(lambda: self._ends(places), within_s=WITHIN_S, what="topics that have just been made answer")
        assign_at(self._consumer, ends)

    @property
    def machine_id(self) -> str:
        assert self.settings.machine_id is not None
        return self.settings.machine_id

    def _ends(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int] | None:
        try:
            return offsets_at(self._consumer, places, OFFSET_END)
        except Unavailable:
            return None

    # ---- the agent's process

    @property
    def environment(self) -> dict[str, str]:
        lease = self.settings.lease
        given = {
            "KAFKA": self.settings.kafka,
            "TOPIC_PREFIX": self.settings.topic_prefix,
            "DATA": str(self.data),
            "MACHINE_ID": self.settings.machine_id,
            "CPU": self.settings.cpu,
            "MEMORY_GB": self.settings.memory_gb,
            "KILL_GRACE_MS": self.settings.kill_grace_ms,
            "DRAIN_MS": self.settings.drain_ms,
            "LOG_BYTES_MAX": self.settings.log_bytes_max,
            "RUN_AS": self.settings.run_as,
            "LOGS_URL": self.settings.logs_url,
            **{f"LEASE_{name.upper()}": value for name, value in lease.model_dump().items()},
        }
        return {f"JOBSTREAM_{name}": str(value) for name, value in given.items() if value is not None}

    def start(self, **extra: str) -> subprocess.Popen[bytes]:
        """Start the agent and wait until it has registered and is present."""
        process = self.launch(**extra)
        self.wait(cmd.MachinePresent, lambda one: one.session == self.session)
        return process

    def launch(self, **extra: str) -> subprocess.Popen[bytes]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("JOBSTREAM_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "jobstream.agent"], env={**own, **self.environment, **extra}, cwd="/"
        )
        known = len(self.all(cmd.MachineRegistered))
        self.processes.append(process)
        if not extra.pop("unregistered", None):
            eventually(
                lambda: len(self.all(cmd.MachineRegistered)) > known, within_s=WITHIN_S, what="the machine registers"
            )
        return process

    def close(self) -> None:
        """End what still runs of the agents and their guardians."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        eventually(self._end_guardians, within_s=WITHIN_S, what="guardians end")
        folder = (self.data / "agents" / self.machine_id).resolve()
        if (left := cgroup_home(name_of(folder))) is not None:  # of a guardian that was killed
            left.rmdir()
        shutil.rmtree(WORK_FOLDER_FALLBACK / name_of(folder), ignore_errors=True)
        self._consumer.close()

    def _end_guardians(self) -> bool:
        found = self.guardians()
        for pid in found:
            os.kill(pid, signal.SIGTERM)  # heeded once it has seen that its agent is gone
        return not found

    def guardians(self) -> list[int]:
        """Processes that hold this folder's guardian lock."""
        lock = (self.data / "agents" / self.machine_id / "guardian.lock").resolve()
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    command = (process / "cmdline").read_bytes()
                    if b"jobstream.agent.guardian" in command and lock in [
                        link.readlink() for link in (process / "fd").iterdir()
                    ]:
                        found.append(int(process.name))
                except OSError:
                    continue
        return found

    # ---- what the machine says

    def all(self, kind: type[M]) -> list[M]:
        """Every message of a kind so far."""
        for record in self._consumer.consume(1_000, timeout=0.05):
            assert record.error() is None, record.error()
            envelope = from_headers(record.headers())  # type: ignore[arg-type]
            value = record.value()
            assert isinstance(value, bytes)
            message = decode(envelope.type, value)
            if getattr(message, "machine_id", None) == self.machine_id or record.key() == self.machine_id.encode():
                self._read.append(message)
        return [message for message in self._read if isinstance(message, kind)]

    def wait(self, kind: type[M], check: Callable[[M], bool], within_s: float = WITHIN_S) -> M:
        """The first message of a kind that passes the check."""
        return eventually(
            lambda: next((one for one in self.all(kind) if check(one)), None),
            within_s=within_s,
            what=f"{kind.__name__}",
        )

    def finished(self, token: int, within_s: float = WITHIN_S) -> cmd.AttemptFinished:
        return self.wait(cmd.AttemptFinished, lambda one: one.token == token, within_s)

    def refused(self, token: int) -> cmd.AttemptRefused:
        return self.wait(cmd.AttemptRefused, lambda one: one.token == token)

    def started(self, token: int) -> cmd.LeaseHeartbeat:
        """The first heartbeat that lists the lease."""
        return self.wait(cmd.LeaseHeartbeat, lambda one: any(lease.token == token for lease in one.leases))

    @property
    def session(self) -> str:
        return self.all(cmd.MachineRegistered)[-1].session

    @property
    def presence(self) -> int:
        return max(one.number for one in self.all(cmd.MachinePresent) if one.session == self.session)

    # ---- what the leader says

    def assign(self, command: str | list[str], **more: Any) -> ev.AssignAttempt:
        """Have an attempt started; what it is like, as `make` says."""
        assign = self.make(command, **more)
        self.dispatch(assign)
        return assign

    def make(
        self,
        command: str | list[str],
        *,
        token: int | None = None,
        job_id: str | None = None,
        presence: int | None = None,
        session: str | None = None,
        **spec: Any,
    ) -> ev.AssignAttempt:
        """An assignment in the machine's session, by its newest presence; `spec` has fields of the job's and its tenant."""
        resources = spec.pop("resources", Resources(cpu_millis=100, memory_mib=64))
        return ev.AssignAttempt(
            machine_id=self.machine_id,
            session=session or self.session,
            tenant=spec.pop("tenant", "acme"),
            job_id=job_id or new_job_id(),
            attempt=1,
            token=next(self._tokens) if token is None else token,
            presence=self.presence if presence is None else presence,
            spec=cmd.JobSpec(
                name="test",
                command=command if isinstance(command, str) else tuple(command),
                resources=resources,
                **spec,
            ),
        )

    def run(self, command: str | list[str], **more: Any) -> tuple[cmd.AttemptFinished, bytes]:
        """Assign, wait for the report, and read the output."""
        assign = self.assign(command, **more)
        return self.finished(assign.token), self.output(assign)

    def cancel(self, assign: ev.AssignAttempt) -> None:
        self.dispatch(ev.CancelAttempt(**_names(assign)))

    def revoke(self, assign: ev.AssignAttempt) -> None:
        self.dispatch(ev.RevokeAttempt(**_names(assign)))

    def dispatch(self, message: ev.Dispatch) -> None:
        self.write(message.machine_id, message.TYPE, encode(message))

    def write(self, machine_id: str, kind: str, value: bytes) -> None:
        """Any record in the mailbox of a machine."""
        envelope = Envelope(id=new_event_id(), type=kind, source="/test", time=format_time(0))
        self._producer.produce(
            full_name(self.settings.topic_prefix, DISPATCH),
            key=machine_id.encode(),
            value=value,
            partition=partition_of(machine_id, PARTITIONS),
            headers=to_headers(envelope),
        )
        assert self._producer.flush(WITHIN_S) == 0

    # ---- the output

    def output(self, assign: ev.AssignAttempt) -> bytes:
        """All of it, once it is complete."""
        log = log_of(assign)
        end = eventually(lambda: self.store.read_end(log), within_s=WITHIN_S, what="the end of the output")
        chunks = [self.store.read_chunk(log, number) or b"" for number in range(end.chunks)]
        assert self.store.read_chunk(log, end.chunks) is None
        assert sum(len(chunk) for chunk in chunks) == end.bytes
        return b"".join(chunks)

    def output_so_far(self, assign: ev.AssignAttempt) -> bytes:
        log = log_of(assign)
        return b"".join(self.store.read_chunk(log, number) or b"" for number, _ in self.store.list_chunks(log))


def log_of(assign: ev.AssignAttempt) -> AttemptLog:
    return AttemptLog(tenant=assign.tenant, job_id=assign.job_id, attempt=assign.attempt, token=assign.token)


def _names(assign: ev.AssignAttempt) -> dict[str, Any]:
    return {
        "machine_id": assign.machine_id,
        "session": assign.session,
        "tenant": assign.tenant,
        "job_id": assign.job_id,
        "attempt": assign.attempt,
        "token": assign.token,
    }


def alive(mark: str) -> list[int]:
    """Processes, anywhere on this machine, whose arguments hold a mark."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                status = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if mark.encode() in (process / "cmdline").read_bytes() and status != "Z":
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
