"""Every topic of jobstream. The README's table, provisioning and all readers and writers take their facts from here."""

from dataclasses import dataclass
from typing import Final, Literal

TENANT_PARTITIONS: Final = 32  # unless configured; cannot change later without moving keys
MAILBOX_PARTITIONS: Final = 64  # with 10,000 agents, each reads 1/64 of the dispatches
CELLS: Final = 1
VALUE_BYTES_MAX: Final = 4 * 1024 * 1024  # what brokers take; our writers stop at a quarter of it
DAY_MS: Final = 24 * 3600 * 1000
FOREVER: Final = -1

Key = Literal["tenant", "machine", "mailbox", "cell", "original"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. `name` is without the prefix. `durable` topics may lose nothing: a lone broker syncs each write.

    `committed` topics are written in transactions or by outsiders, and read `read_committed`.
    """

    name: str
    key: Key
    written_by: str
    read_by: str
    retention_ms: int
    durable: bool
    committed: bool


SUBMISSIONS: Final = Topic(
    name="submissions",
    key="tenant",
    written_by="commands: API and cron; each upstream service into its own `submissions.PRODUCER`",
    read_by="leader, monitor",
    retention_ms=FOREVER,
    durable=True,
    committed=True,
)
COMPLETIONS: Final = Topic(
    name="completions",
    key="tenant",
    written_by="agents: attempt finished, or refused before it started; the leader's ticks",
    read_by="leader, monitor",
    retention_ms=FOREVER,
    # A report that a power cut takes from a lone broker is as one of a machine that died: the lease expires, the job
    # runs again. To sync 32 partitions at each second's ticks would hold up everybody.
    durable=False,
    committed=False,
)
HEARTBEATS: Final = Topic(
    name="heartbeats",
    key="tenant",
    written_by="agents: leases that have started and live; the leader's ticks",
    read_by="leader, monitor",
    retention_ms=3 * DAY_MS,
    durable=False,
    committed=False,
)
MACHINES: Final = Topic(
    name="machines",
    key="machine",
    written_by="agents: registered, present, stopping, gone; the leader's ticks",
    read_by="leader, monitor",
    retention_ms=3 * DAY_MS,
    durable=False,
    committed=False,
)
LIFECYCLE: Final = Topic(
    name="lifecycle",
    key="tenant",
    written_by="**the leader alone**: every decision on a job",
    read_by="projector, monitor, notifier, analytics, audit",
    retention_ms=FOREVER,
    durable=True,
    committed=True,
)
SCHEDULES: Final = Topic(
    name="schedules",
    key="tenant",
    written_by="**the leader alone**: schedules made, changed, fired, skipped",
    read_by="cron, projector",
    retention_ms=FOREVER,
    durable=True,
    committed=True,
)
FLEET: Final = Topic(
    name="fleet",
    key="machine",
    written_by="**the leader alone**: machines admitted, draining, left, lost",
    read_by="projector, monitor",
    retention_ms=FOREVER,
    durable=True,
    committed=True,
)
DISPATCH: Final = Topic(
    name="dispatch",
    key="mailbox",
    written_by="**the leader alone**, after the round has committed: assign, cancel, revoke",
    read_by="agents, each its own mailbox partition",
    retention_ms=DAY_MS,
    durable=False,
    committed=False,
)
ROUNDS: Final = Topic(
    name="rounds",
    key="cell",
    written_by="**the leader alone**: one record a round",
    read_by="leader takeover, replay",
    retention_ms=FOREVER,
    durable=True,
    committed=True,
)
NOTIFICATIONS: Final = Topic(
    name="notifications",
    key="tenant",
    written_by="notifier",
    read_by="users",
    retention_ms=7 * DAY_MS,
    durable=False,
    committed=False,
)
ALERTS: Final = Topic(
    name="alerts",
    key="tenant",
    written_by="monitor",
    read_by="users, operators",
    retention_ms=7 * DAY_MS,
    durable=False,
    committed=False,
)
DEAD_LETTERS: Final = Topic(
    name="dead-letters",
    key="original",
    written_by="whoever could not read a record",
    read_by="operators",
    retention_ms=30 * DAY_MS,
    durable=True,
    committed=True,
)

TOPICS: Final = (
    SUBMISSIONS,
    COMPLETIONS,
    HEARTBEATS,
    MACHINES,
    LIFECYCLE,
    SCHEDULES,
    FLEET,
    DISPATCH,
    ROUNDS,
    NOTIFICATIONS,
    ALERTS,
    DEAD_LETTERS,
)
LOG: Final = (LIFECYCLE, SCHEDULES, FLEET)  # what the leader alone writes, numbered densely in each partition
TICKED: Final = (COMPLETIONS, HEARTBEATS, MACHINES)  # inboxes that carry the leader's ticks


def upstream(producer: str) -> Topic:
    """The inbox of one upstream service."""
    return Topic(
        name=f"{SUBMISSIONS.name}.{producer}",
        key="tenant",
        written_by=f"commands of the upstream service {producer}",
        read_by="leader, monitor",
        retention_ms=FOREVER,
        durable=True,
        committed=True,
    )


def full_name(prefix: str, topic: Topic) -> str:
    return prefix + topic.name


def retention_words(topic: Topic) -> str:
    return "forever" if topic.retention_ms == FOREVER else f"{topic.retention_ms // DAY_MS} d"


def markdown_table(prefix: str = "jobstream.") -> str:
    """The README's data-flow table."""
    rows = [f"| topic (prefix `{prefix}`) | key | written by | read by | kept |", "|---|---|---|---|---|"]
    for topic in TOPICS:
        cells = (f"`{topic.name}`", topic.key, topic.written_by, topic.read_by, retention_words(topic))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
