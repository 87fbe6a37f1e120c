"""Provisioned topics, a migrated schema, and schedulers and projectors to run on them as processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.stack.isolation import Isolation

from jobstream.projector.migrate import migrate
from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import make_admin
from jobstream.topics.provisioning import provision

PARTITIONS = 4

StartService = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def settings(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Short leases: a leader is replaced in 2 s, a lease expires after 6."""
    quick = {
        "JOBSTREAM_TENANT_PARTITIONS": str(PARTITIONS),
        "JOBSTREAM_MAILBOX_PARTITIONS": "2",
        "JOBSTREAM_LEADER_SESSION_MS": "2000",
        "JOBSTREAM_LEASE_TTL_MS": "4000",
        "JOBSTREAM_LEASE_MARGIN_MS": "1500",
        "JOBSTREAM_LEASE_GRACE_MS": "2000",
        "JOBSTREAM_LEASE_HEARTBEAT_MS": "1000",
        "JOBSTREAM_LEASE_TICK_MS": "250",
        "JOBSTREAM_LEASE_STOP_MS": "500",
    }
    for name, value in {**isolation.environment, **quick}.items():
        monkeypatch.setenv(name, value)
    made = Settings()
    migrate(made)
    provision(make_admin(made), made.plan())
    return made


@pytest.fixture
def start(settings: Settings) -> Iterator[StartService]:
    """Starts services as processes; `fault` is a JOBSTREAM_FAULT. Those that live are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(service: str, fault: str | None = None, **environment: str) -> subprocess.Popen[str]:
        variables = {**os.environ, **environment, **({"JOBSTREAM_FAULT": fault} if fault else {})}
        process = subprocess.Popen([sys.executable, "-m", f"jobstream.{service}"], env=variables, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
