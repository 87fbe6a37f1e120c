"""A whole stack for one measurement, and settings that reach it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from jobstream.local import run
from jobstream.runtime.config import Settings, load_settings


@contextmanager
def whole_stack(folder: Path, agents: int) -> Iterator[Settings]:
    """Kafka, PostgreSQL and every service, in a folder of the run's own; gone afterwards, even if this is killed."""
    # jobs run as another user, who must reach the folder
    folder.chmod(0o755)
    data = folder / "data"
    run.up(agents=agents, data=data, detach=True, ready=lambda _: None, progress=say, until=os.getpid())
    try:
        described = run.status(data)
        assert described is not None, "the stack ended right after it was ready"
        yield load_settings(
            kafka=described["kafka"],
            postgres=described["postgres"],
            api_url=described["api_url"],
            api_key=described["api_key"],
            replication_factor=1,
            unsafe_replication=True,
            tenant_partitions=int(described["settings"]["JOBSTREAM_TENANT_PARTITIONS"]),
            mailbox_partitions=int(described["settings"]["JOBSTREAM_MAILBOX_PARTITIONS"]),
        )
    finally:
        run.down(data)


def cpu_seconds(folder: Path) -> dict[str, float]:
    """CPU time that each child of the stack has used, its own children included: what a noisy machine changes least."""
    described = run.status(folder / "data")
    assert described is not None, "the stack is gone"
    used = {}
    for child in described["children"]:
        if child["pid"] is not None and psutil.pid_exists(child["pid"]):  # steps have ended
            process = psutil.Process(child["pid"])
            family = [process, *process.children(recursive=True)]
            used[child["name"]] = sum(sum(one.cpu_times()[:4]) for one in family)
    return used


def say(message: str) -> None:
    sys.stderr.write(message + "\n")


def percentile(sorted_values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]
