"""The list of commands as data: a command's module is imported when it is called, and the overview needs none of them."""

from dataclasses import dataclass
from typing import Final

GROUPS: Final = ("Local stack", "Jobs", "Administration", "Services")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command: `target` is "module:attribute" of a function, or of a cyclopts App where there are subcommands."""

    name: str
    target: str
    summary: str
    group: str


def _entry(group: str, name: str, target: str, summary: str) -> Entry:
    return Entry(name=name, target=f"jobstream.cli.{target}", summary=summary, group=group)


COMMANDS: Final = (
    _entry("Local stack", "up", "local:up", "Start Kafka, PostgreSQL, every service and agents on this machine."),
    _entry("Local stack", "down", "local:down", "Stop the local stack; its data stays."),
    _entry("Local stack", "status", "local:status", "Show the processes and addresses of the local stack."),
    _entry("Local stack", "env", "local:env", "Print the local stack's settings for a shell to evaluate."),
    _entry("Local stack", "demo", "demo:demo", "Start a stack, run a real workload on three agents, stop everything."),
    _entry("Jobs", "submit", "jobs:submit", "Submit a job; with --wait end as it ends."),
    _entry("Jobs", "wait", "jobs:wait", "Wait until a job has ended, and end as it ended."),
    _entry("Jobs", "list", "jobs:list_jobs", "List jobs, newest first."),
    _entry("Jobs", "get", "jobs:get", "Show one job and its attempts."),
    _entry("Jobs", "logs", "jobs:logs", "Print what a job has written; with -f follow it."),
    _entry("Jobs", "cancel", "jobs:cancel", "Cancel jobs."),
    _entry("Jobs", "machines", "jobs:machines", "List the machines."),
    _entry("Administration", "tenants", "tenants:app", "Manage tenants and their API keys."),
    _entry("Administration", "topics", "topics:app", "List, make, check and document the Kafka topics."),
    _entry("Administration", "migrate", "database:migrate", "Bring the database's schema up to date."),
    _entry("Administration", "admin", "database:admin", "Make the first admin key."),
    _entry("Services", "api", "services:api", "Run the REST API."),
    _entry("Services", "scheduler", "services:scheduler", "Run a scheduler: leader or standby."),
    _entry("Services", "projector", "services:projector", "Run a projector: from the log to PostgreSQL."),
    _entry("Services", "agent", "services:agent", "Run the agent of this machine."),
)


def overview() -> str:
    """What `jobstream --help` prints."""
    width = max(len(entry.name) for entry in COMMANDS) + 2
    lines = ["Usage: jobstream COMMAND [OPTIONS]", "", "A distributed job scheduler on a Kafka log.", ""]
    for group in GROUPS:
        lines.append(f"{group}:")
        lines += [f"  {entry.name:<{width}}{entry.summary}" for entry in COMMANDS if entry.group == group]
        lines.append("")
    lines.append("`jobstream COMMAND --help` tells more; `jobstream --version` the version.")
    return "\n".join(lines)
