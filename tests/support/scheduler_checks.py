"""What must hold of a log, and of two states that should be one."""

from typing import Any

from tests.support.scheduler_inboxes import PARTITIONS, Inboxes
from tests.support.scheduler_world import Log

from jobstream.scheduler.inputs import Fault, base_topic
from jobstream.scheduler.state import State
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.envelope import TOKEN_INDEX_BITS
from jobstream.schemas.states import LEASED, TRANSITIONS, JobStatus
from jobstream.topics.catalogue import COMPLETIONS, SUBMISSIONS
from jobstream.topics.partitioning import partition_of

_TERMINAL: dict[type[Message], JobStatus] = {
    ev.JobCompleted: "completed",
    ev.JobFailed: "failed",
    ev.JobCancelled: "cancelled",
}
_TO: dict[type[Message], JobStatus] = {
    ev.JobAssigned: "assigned",
    ev.JobStarted: "running",
    ev.AssignmentRefused: "queued",
    ev.AttemptLost: "queued",
    **_TERMINAL,
}


def check_log(log: Log) -> dict[tuple[str, str], JobStatus]:
    """What must hold of a log however its leaders ended; the status of every job.

    Dense sequences, growing rounds and tokens, no input answered twice, only transitions of the table, one terminal
    event a job.
    """
    for place, records in log.places.items():
        assert [record.stamp.sequence for record in records] == list(range(len(records))), f"{place} is not dense"
        order = [(record.stamp.epoch, record.stamp.round, record.stamp.index) for record in records]
        assert order == sorted(set(order)), f"{place} goes back in epoch, round or index"
        assert all(partition_of(record.key, PARTITIONS) == record.partition for record in records)
    found = log.records()
    numbers = [(record.stamp.round, record.stamp.index) for record in found]
    assert len(numbers) == len(set(numbers)), "two facts have one place in one round"
    assert [record.stamp.at_ms for record in found] == sorted(record.stamp.at_ms for record in found), "time went back"
    causes = [record.stamp.cause for record in found if record.stamp.cause != "state"]
    assert len(causes) == len(set(causes)), f"answered twice: {sorted({c for c in causes if causes.count(c) > 1})}"
    rounds = [record.round for record in log.rounds]
    assert rounds == sorted(set(rounds)), "rounds go back"
    tokens = [record.event.token for record in found if isinstance(record.event, ev.JobAssigned)]
    assert tokens == sorted(set(tokens)), "tokens do not grow"
    assert all(token >> TOKEN_INDEX_BITS <= found[-1].stamp.round for token in tokens)
    statuses: dict[tuple[str, str], JobStatus] = {}
    for record in found:
        _follow(statuses, record.event)
    return statuses


def _follow(statuses: dict[tuple[str, str], JobStatus], event: Message) -> None:
    if not isinstance(event, ev.JobEvent):
        return
    key = (event.tenant, event.job_id)
    if isinstance(event, ev.JobAccepted):
        assert key not in statuses, f"job {event.job_id} is accepted twice"
        statuses[key] = "queued"
    elif (to := _TO.get(type(event))) is not None:
        assert to in TRANSITIONS[statuses[key]], f"job {event.job_id} goes from {statuses[key]} to {to}"
        statuses[key] = to
    elif isinstance(event, ev.CancelRequested):
        assert statuses[key] in LEASED


def causes_to_answer(inboxes: Inboxes) -> set[str]:
    """Inputs that get exactly one fact each: every command, and every report on a job that there was."""
    topics = (SUBMISSIONS.name, COMPLETIONS.name)
    return {
        record.cause
        for (topic, _), records in inboxes.places.items()
        for record in records
        if base_topic(topic) in topics and not isinstance(record.content, cmd.LeaderTick | Fault)
    }


def comparable(state: State) -> dict[str, Any]:
    """Everything that two ways to one state must agree on: what the log carries, and where placement looks."""
    backlog = [
        (level, tenant, queue, shape, sorted(bucket.live.items()))
        for level, tenants in enumerate(state.backlog.levels)
        for tenant, queues in tenants.items()
        for queue, buckets in queues.items()
        for shape, bucket in sorted(buckets.items())
    ]
    fleet = state.fleet
    count = len(fleet.ids)
    return {
        "jobs": state.jobs,
        "machines": list(state.machines.items()),
        "leases": {name: list(held.items()) for name, held in state.leases.items()},
        "lost": list(state.lost.items()),
        "memory": {key: value for _, jobs in state.memory.generations for key, value in jobs.items()},
        "backlog": backlog,
        "ids": fleet.ids,
        "free": (fleet.free_cpu[:count].tolist(), fleet.free_memory[:count].tolist()),
        "up": (fleet.up[:count].tolist(), fleet.heard[:count].tolist(), fleet.presence_age[:count].tolist()),
        "next_sequence": state.next_sequence,
        "positions": state.positions,
        "counters": (state.round, state.epoch, state.now_ms, state.digest),
        "soft": state.soft,
    }
