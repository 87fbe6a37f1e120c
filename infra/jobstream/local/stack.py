"""What a stack is made of: the two servers and, when asked for, every service, as data for the supervisor."""

import json
import os
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT
from typing import Any

import jobstream
from jobstream.local import kafka, postgres, state
from jobstream.local.java import Java
from jobstream.local.paths import Layout
from jobstream.local.process import Command
from jobstream.local.supervisor import Child, Restart, Supervisor

STEPS = ("migrate", "keys", "topics")
TENANT = "default"  # whose key `up` shows
SERVICES = ("scheduler", "projector")
CLI = (sys.executable, "-m", "jobstream.cli")
AGENT_CPU = 2
AGENT_MEMORY_GB = 4
AGENT_DRAIN_MS = 3_000  # who stops a local stack does not want to wait; what still runs then runs again next time
PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run of a stack: which folder, how many agents (None: the servers alone), which ports."""

    layout: Layout
    java: Java
    agents: int | None
    ports: dict[str, int]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports['kafka']}"

    @property
    def api_url(self) -> str | None:
        return None if self.agents is None else f"http://127.0.0.1:{self.ports['api']}"


def plan(layout: Layout, java: Java, agents: int | None) -> Plan:
    """Choose the ports of a run; the data folder must be owned."""
    return Plan(layout=layout, java=java, agents=agents, ports=state.ports(layout, ("kafka", "controller", "api")))


def children(plan: Plan) -> list[Child]:
    """Everything that the supervisor owns, in the order of starting."""
    layout, ports = plan.layout, plan.ports
    servers = [
        Child(
            name="kafka",
            command=lambda: kafka.command(layout.kafka, plan.java, ports["kafka"], ports["controller"]),
            ready=lambda: kafka.ready(plan.bootstrap),
            stop_grace_s=20.0,  # it takes 1 s; more when it flushes a long log
        ),
        Child(
            name="postgres",
            command=lambda: postgres.command(layout),
            ready=lambda: postgres.ready(layout),
            stop_signal=SIGINT,  # fast: does not wait for clients to leave
            stop_grace_s=20.0,  # it takes 0.2 s; more when there is much to checkpoint
        ),
    ]
    return servers if plan.agents is None else servers + _services(plan, plan.agents)


def describe(plan: Plan, supervisor: Supervisor) -> state.State:
    """The content of stack.json."""
    keys = state.read_keys(plan.layout)
    return {
        "api_url": plan.api_url,
        "api_key": keys.get("api_key"),
        "admin_key": keys.get("admin_key"),
        "kafka": plan.bootstrap,
        "postgres": postgres.dsn(plan.layout),
        "data": str(plan.layout.data),
        "metrics_urls": {},
        "settings": _settings(plan),
        "ready": supervisor.ready,
        "supervisor": state.own_supervisor(),
        "children": supervisor.children(),
    }


def python_path() -> str:
    """Where children find this project: as this process does, be it installed or not."""
    own = [str(Path(folder).parent) for folder in jobstream.__path__]
    return os.pathsep.join(dict.fromkeys([*own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def _services(plan: Plan, agents: int) -> list[Child]:
    env = _environment(plan)

    def cli(*args: str) -> Callable[[], Command]:
        command = Command(argv=[*CLI, *args], env=env, cwd=plan.layout.data)
        return lambda: command

    steps = [
        Child(name="migrate", command=cli("migrate"), after=["postgres"], restart=Restart.ONCE),
        Child(
            name="keys",
            # Forced: the file is what counts. A database with a key that was lost with its file gets one more.
            command=cli("admin", "init", "--tenant", TENANT, "--force", "--save", str(plan.layout.keys)),
            after=["migrate"],
            restart=Restart.ONCE,
        ),
        Child(
            name="topics",
            command=cli("topics", "provision"),
            ready_within_s=120.0,  # it makes some 400 partitions: 3 s on an idle machine
            after=["kafka"],
            restart=Restart.ONCE,
        ),
    ]
    services = [Child(name=name, command=cli(name), after=STEPS) for name in SERVICES]
    api = Child(
        name="api",
        command=cli("api"),
        ready=lambda: _get(f"{plan.api_url}/readyz") is not None,
        after=STEPS,
        stop_grace_s=20.0,  # it lets requests finish for 15 s
    )
    machines = [_agent(plan, env, f"local-{number}") for number in range(1, agents + 1)]
    return [*steps, *services, api, *machines]


def _agent(plan: Plan, env: dict[str, str], machine: str) -> Child:
    """An agent; it is ready when the projection shows it admitted, and so once scheduler and projector work."""
    since = datetime.now(UTC)
    told = env | {
        "JOBSTREAM_MACHINE_ID": machine,
        "JOBSTREAM_CPU": str(AGENT_CPU),
        "JOBSTREAM_MEMORY_GB": str(AGENT_MEMORY_GB),
        "JOBSTREAM_LABELS": '{"zone": "local"}',
        "JOBSTREAM_DRAIN_MS": str(AGENT_DRAIN_MS),
    }
    del told["JOBSTREAM_POSTGRES"]  # it has no business there, nor have its jobs

    def command() -> Command:
        nonlocal since
        since = datetime.now(UTC)
        return Command(argv=[*CLI, "agent"], env=told, cwd=plan.layout.data)

    def ready() -> bool:
        key = state.read_keys(plan.layout)["api_key"]
        seen = _get(f"{plan.api_url}/api/v1/machines/{machine}", key)
        # One that was admitted in an earlier run is in the projection too.
        return seen is not None and seen["status"] == "up" and datetime.fromisoformat(seen["admitted_at"]) > since

    return Child(
        name=f"agent-{machine}",
        command=command,
        ready=ready,
        after=STEPS,
        outlived_by=[*SERVICES, "api"],
        stop_grace_s=25.0,  # the drain, 10 s of grace for its jobs, and its reports
    )


def _environment(plan: Plan) -> dict[str, str]:
    """What every service is told."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    own = {name: value for name, value in os.environ.items() if name.startswith("JOBSTREAM_")}
    return (
        passed
        | own
        | {
            "PYTHONPATH": python_path(),
            "PYTHONUNBUFFERED": "1",
            "JOBSTREAM_KAFKA": plan.bootstrap,
            "JOBSTREAM_POSTGRES": postgres.dsn(plan.layout),
            "JOBSTREAM_DATA": str(plan.layout.data),
            "JOBSTREAM_API_HOST": "127.0.0.1",
            "JOBSTREAM_API_PORT": str(plan.ports["api"]),
            "JOBSTREAM_API_URL": str(plan.api_url),
        }
        | _settings(plan)
    )


def _settings(plan: Plan) -> dict[str, str]:
    """What whoever joins this stack by hand must be told too."""
    return {
        "JOBSTREAM_LOGS_URL": os.environ.get("JOBSTREAM_LOGS_URL") or (plan.layout.data / "job-logs").as_uri(),
        "JOBSTREAM_REPLICATION_FACTOR": "1",
        "JOBSTREAM_UNSAFE_REPLICATION": "true",  # one broker: nothing to replicate to
        # A quarter of what a cluster gets: each tick of the leader and each idle fetch costs by the partition.
        "JOBSTREAM_TENANT_PARTITIONS": os.environ.get("JOBSTREAM_TENANT_PARTITIONS", "8"),
        "JOBSTREAM_MAILBOX_PARTITIONS": os.environ.get("JOBSTREAM_MAILBOX_PARTITIONS", "8"),
    }


def _get(url: str, key: str | None = None) -> Any:
    """The JSON answer, or None when there is none."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310 (our own address)
            return json.load(answer)
    except (OSError, ValueError):
        return None
