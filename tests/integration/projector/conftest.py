"""A migrated schema, provisioned topics, a log to write to, and projectors to run on them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.stack.isolation import Isolation
from tests.support.projecting import Log, RunProjector, StartProjector, run_projector

from jobstream.projector.migrate import migrate
from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import make_admin
from jobstream.runtime.postgres import connect
from jobstream.topics.provisioning import provision

PARTITIONS = 4


@pytest.fixture
def settings(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in isolation.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JOBSTREAM_TENANT_PARTITIONS", str(PARTITIONS))
    monkeypatch.setenv("JOBSTREAM_MAILBOX_PARTITIONS", "1")
    return Settings()


@pytest.fixture
def migrated(settings: Settings) -> Settings:
    migrate(settings)
    return settings


@pytest.fixture
def ready(migrated: Settings) -> Settings:
    provision(make_admin(migrated), migrated.plan())
    return migrated


@pytest.fixture
def connection(migrated: Settings) -> Iterator[psycopg.Connection[Any]]:
    with connect(migrated, autocommit=True) as opened:
        yield opened


@pytest.fixture
def log(ready: Settings) -> Log:
    return Log(ready)


@pytest.fixture
def projecting(ready: Settings) -> RunProjector:
    """Runs a projector in a thread of this process until the context ends; raises what it raised."""
    return lambda: run_projector(ready)


@pytest.fixture
def start_projector(ready: Settings) -> Iterator[StartProjector]:
    """Starts projectors as processes; `fault` is a JOBSTREAM_FAULT. Those that live are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(fault: str | None = None) -> subprocess.Popen[str]:
        environment = {**os.environ, **({"JOBSTREAM_FAULT": fault} if fault else {})}
        process = subprocess.Popen(
            [sys.executable, "-m", "jobstream.projector"], env=environment, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
