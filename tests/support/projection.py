"""The rows that a log must give, computed event by event in the plainest way; and the rows that the database holds."""

from collections.abc import Iterable
from typing import Any

import psycopg
from tests.support.leader_log import Entry

from jobstream.schemas import events as ev
from jobstream.schemas.codec import encode
from jobstream.schemas.envelope import fencing_token
from jobstream.schemas.states import PRIORITIES

Rows = dict[str, dict[Any, dict[str, Any]]]

# Timestamps as ms, so that they compare with the log's.
QUERIES = {
    "jobs": "tenant, job_id::text AS job_id",
    "attempts": "tenant, job_id::text AS job_id, attempt",
    "machines": "machine_id",
    "command_refusals": "tenant, command_id",
}


def stored_rows(connection: psycopg.Connection[Any]) -> Rows:
    """Every row of the projection, by table and key."""
    found: Rows = {}
    for table, key in QUERIES.items():
        cursor = connection.execute(f"SELECT {key}, row_to_json({table}) FROM {table}".encode())
        found[table] = {tuple(row[:-1]): _plain(row[-1]) for row in cursor}
    return found


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    for name, value in row.items():
        if name.endswith("_at") and value is not None:
            row[name] = round(datetime.fromisoformat(value).timestamp() * 1000)
    return row


def expected_rows(entries: Iterable[tuple[Entry, int]]) -> Rows:
    """Fold entries with their offsets."""
    rows: Rows = {table: {} for table in QUERIES}
    for entry, offset in entries:
        _apply(rows, entry, offset)
    return rows


def _apply(rows: Rows, entry: Entry, offset: int) -> None:
    event, at = entry.event, entry.stamp.at_ms
    if isinstance(event, ev.MachineEvent):
        _apply_machine(rows["machines"], event, at, offset)
        return
    assert isinstance(event, ev.JobEvent)
    key = (event.tenant, event.job_id)
    job = rows["jobs"].get(key, {})
    attempts = rows["attempts"]
    if isinstance(event, ev.JobAccepted):
        rows["jobs"][key] = _new_job(event, entry, offset)
        return
    if isinstance(event, ev.JobRefused | ev.CancelIgnored):
        refusal = {
            "tenant": event.tenant,
            "command_id": event.command_id,
            "job_id": event.job_id,
            "code": event.code,
            "detail": event.detail,
            "refused_at": at,
        }
        rows["command_refusals"].setdefault((event.tenant, event.command_id), refusal)
        return
    if isinstance(event, ev.SubmissionRepeated):
        return
    if job:
        job["last_offset"] = offset
    if isinstance(event, ev.ReportIgnored):
        if (attempt := attempts.get((*key, event.attempt))) is not None:
            report = event.model_dump(include={"token", "machine_id", "session", "reported", "code"})
            attempt["evidence"] = [*(attempt["evidence"] or []), {"at_ms": at, **report}][:20]
        return
    no_lease = {"session": None, "token": None, "presence": None}
    if isinstance(event, ev.CancelRequested):
        job["cancel_requested"] = True
        job["detail"] = event.reason if event.reason is not None else job["detail"]
    elif isinstance(event, ev.JobAssigned):
        lease = event.model_dump(include={"attempt", "machine_id", "session", "token"})
        job |= {**lease, "presence": event.presence, "status": "assigned", "started_at": None}
        attempts[(*key, event.attempt)] = {
            **dict.fromkeys(("started_at", "ended_at", "outcome", "exit_code", "signal", "detail", "evidence")),
            **lease,
            "tenant": event.tenant,
            "job_id": event.job_id,
            "assigned_at": at,
        }
    elif isinstance(event, ev.JobStarted):
        job |= {"status": "running", "started_at": event.seen_at_ms}
        attempts[(*key, event.attempt)]["started_at"] = event.seen_at_ms
    elif isinstance(event, ev.AssignmentRefused):
        del attempts[(*key, event.attempt)]
        job |= {**no_lease, "machine_id": None, "status": "queued", "attempt": event.attempt - 1}
    elif isinstance(event, ev.AttemptLost):
        attempts[(*key, event.attempt)] |= {"ended_at": at, "outcome": "lost", "detail": event.detail}
        job |= {**no_lease, "machine_id": None, "status": "queued"}
        job["lost_attempts"] += event.started
    else:
        assert isinstance(event, ev.JobCompleted | ev.JobFailed | ev.JobCancelled)
        status = {"JobCompleted": "completed", "JobFailed": "failed", "JobCancelled": "cancelled"}[type(event).__name__]
        job |= {**no_lease, "machine_id": None, "status": status, "ended_at": at}
        if (end := event.end) is not None:
            ended = end.model_dump(include={"exit_code", "signal"})
            attempt = attempts[(*key, end.attempt)]
            attempt |= {**ended, "ended_at": at, "outcome": end.outcome, "detail": end.detail}
            job |= {**ended, "machine_id": end.machine_id}
            if end.started_at_ms is not None:
                for row in (job, attempt):
                    if row["started_at"] is None:
                        row["started_at"] = min(end.started_at_ms, at)
        else:
            for name, attempt in attempts.items():
                if name[:2] == key and attempt["ended_at"] is None:
                    attempt |= {"ended_at": at, "outcome": "cancelled" if status == "cancelled" else "failed"}
        if isinstance(event, ev.JobCompleted):
            job["detail"] = event.end.detail
        elif isinstance(event, ev.JobFailed):
            job |= {"reason": event.reason, "detail": event.detail}
        else:
            job["reason"] = "cancelled"
            job["detail"] = event.reason if event.reason is not None else job["detail"]


def _new_job(event: ev.JobAccepted, entry: Entry, offset: int) -> dict[str, Any]:
    import orjson

    unset = ("machine_id", "session", "token", "presence", "started_at", "ended_at", "exit_code", "signal", "reason")
    return {
        **dict.fromkeys(unset),
        "detail": None,
        "tenant": event.tenant,
        "job_id": event.job_id,
        "name": event.spec.name,
        "queue": event.spec.queue,
        "priority": PRIORITIES.index(event.spec.priority),
        "status": "queued",
        "spec": orjson.loads(encode(event.spec)),
        "digest": event.digest,
        "idempotency_key": event.idempotency_key,
        "created_at": entry.stamp.at_ms,
        "accepted": fencing_token(entry.stamp.round, entry.stamp.index),
        "attempt": 0,
        "lost_attempts": 0,
        "cancel_requested": False,
        "log_partition": entry.partition,
        "first_offset": offset,
        "last_offset": offset,
    }


def _apply_machine(machines: dict[Any, dict[str, Any]], event: ev.MachineEvent, at: int, offset: int) -> None:
    key = (event.machine_id,)
    if isinstance(event, ev.MachineAdmitted):
        machines[key] = {
            "machine_id": event.machine_id,
            "session": event.session,
            "boot_id": event.boot_id,
            "status": "up",
            "cpu_millis": event.resources.cpu_millis,
            "memory_mib": event.resources.memory_mib,
            "labels": dict(event.labels),
            "admitted_at": at,
            "changed_at": at,
            "last_offset": offset,
        }
    elif not isinstance(event, ev.MachineReportIgnored):
        becomes = {"MachineDraining": "draining", "MachineLeft": "left", "MachineLost": "lost"}
        machines[key] |= {"status": becomes[type(event).__name__], "changed_at": at, "last_offset": offset}
