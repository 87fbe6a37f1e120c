"""Jobs a second from the submission event to the `completed` row: the agents' protocol, without processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.running import cpu_seconds, say, whole_stack

from jobstream.runtime.config import Settings
from jobstream.runtime.kafka import make_producer
from jobstream.runtime.postgres import connect
from jobstream.schemas.codec import encode
from jobstream.schemas.commands import JobSpec, SubmitJob
from jobstream.schemas.envelope import Envelope, format_time, to_headers
from jobstream.schemas.new_ids import new_event_id, new_job_id
from jobstream.schemas.resources import Resources
from jobstream.topics.catalogue import SUBMISSIONS, full_name

JOBS = 60_000
TENANTS = 20
MACHINES = 1_000
WAIT_S = 300.0


def measure(folder: Path) -> dict[str, Any]:
    with whole_stack(folder, agents=0) as settings, _machines(settings):
        say(f"{JOBS} jobs of {TENANTS} tenants on {MACHINES} machines")
        cpu_before = cpu_seconds(folder)
        began = time.monotonic()
        _submit(settings)
        submitted_s = time.monotonic() - began
        completed_s = _wait_for_rows(settings, began)
        cpu = {name: used - cpu_before.get(name, 0.0) for name, used in cpu_seconds(folder).items()}
    return {
        "jobs": JOBS,
        "tenants": TENANTS,
        "machines": MACHINES,
        "submitted_s": round(submitted_s, 2),
        "completed_s": round(completed_s, 2),
        "jobs_per_s": round(JOBS / completed_s),
        "cpu_us_per_job": {name: round(used / JOBS * 1e6) for name, used in cpu.items() if used > 0},
    }


@contextmanager
def _machines(settings: Settings) -> Iterator[None]:
    """The machines, in a process of their own; ready once they are all admitted."""
    environment = {
        "JOBSTREAM_KAFKA": settings.kafka,
        "JOBSTREAM_POSTGRES": settings.postgres.get_secret_value(),
        "JOBSTREAM_TENANT_PARTITIONS": str(settings.tenant_partitions),
        "JOBSTREAM_MAILBOX_PARTITIONS": str(settings.mailbox_partitions),
        "PATH": "/usr/bin:/bin",
    }
    played = subprocess.Popen([sys.executable, "-m", "tests.bench.machines", str(MACHINES)], env=environment)
    try:
        with connect(settings, autocommit=True) as connection:
            _until(lambda: connection.execute("SELECT count(*) FROM machines").fetchone() == (MACHINES,))
        yield
    finally:
        played.terminate()
        played.wait(30)


def _submit(settings: Settings) -> None:
    producer = make_producer(settings, linger_ms=5)
    topic = full_name(settings.topic_prefix, SUBMISSIONS)
    spec = JobSpec(name="throughput", command=("true",), resources=Resources(cpu_millis=1000, memory_mib=1024))
    for number in range(JOBS):
        tenant = f"tenant-{number % TENANTS}"
        command = SubmitJob(tenant=tenant, job_id=new_job_id(), spec=spec)
        envelope = Envelope(
            id=new_event_id(), type=SubmitJob.TYPE, source="/bench", time=format_time(int(time.time() * 1000))
        )
        while True:
            try:
                producer.produce(topic, key=tenant.encode(), value=encode(command), headers=to_headers(envelope))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0, "submissions were not delivered"


def _wait_for_rows(settings: Settings, began: float) -> float:
    """Seconds from `began` until every job's row says completed."""
    with connect(settings, autocommit=True) as connection:
        query = "SELECT count(*) FROM jobs WHERE status = 'completed'"
        _until(lambda: connection.execute(query).fetchone() == (JOBS,))
    return time.monotonic() - began


def _until(done: Any) -> None:
    give_up = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < give_up, f"not done within {WAIT_S} s"
        time.sleep(0.1)  # the figure's resolution; rows give no signal that would cost less
