"""Rows of the projection as what is answered over HTTP. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jobstream.api.problems import Problem
from jobstream.schemas.states import PRIORITIES, TERMINAL

API: Final = "/api/v1"
SUBMITTED: Final = "submitted"  # Kafka has the command, the projection does not show the job yet; in no row

Row = Mapping[str, Any]
View = dict[str, Any]


def job_path(job_id: str) -> str:
    return f"{API}/jobs/{job_id}"


def position_of(row: Row) -> str:
    """The token that a later read may bring, to see at least what this answer shows."""
    return f"{row['log_partition']}:{row['last_offset'] + 1}"


def job_summary(row: Row, base_url: str) -> View:
    """A job in a list."""
    job_id = row["job_id"]
    return {
        "job_id": job_id,
        "name": row["name"],
        "status": row["status"],
        "queue": row["queue"],
        "priority": PRIORITIES[row["priority"]],
        "resources": resources(row["resources"]),
        "labels": row["labels"] or {},
        "machine_id": row["machine_id"],
        "attempt": row["attempt"],
        "created_at": moment(row["created_at"]),
        "started_at": moment(row["started_at"]),
        "ended_at": moment(row["ended_at"]),
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "reason": row["reason"],
        "detail": row["detail"],
        "cancel_requested": row["cancel_requested"],
        "logs_url": f"{base_url}{job_path(job_id)}/logs",
    }


def job(row: Row, base_url: str) -> View:
    """A whole job. Of its environment the names alone: values may be secret."""
    spec = row["spec"]
    timeout_ms = spec.get("timeout_ms")
    return job_summary(row, base_url) | {
        "command": spec["command"],
        "required_labels": spec.get("required_labels") or {},
        "timeout_seconds": None if timeout_ms is None else decimal(timeout_ms, 1000),
        "env_names": sorted(spec.get("env") or ()),
        "attempts": [attempt(item) for item in row["attempts"]],
    }


def submitted(row: Row, base_url: str) -> View:
    """What a submission is answered with: the job as it is now."""
    return {
        "job_id": row["job_id"],
        "status": row["status"],
        "name": row["name"],
        "queue": row["queue"],
        "priority": PRIORITIES[row["priority"]],
        "created_at": moment(row["created_at"]),
        "logs_url": f"{base_url}{job_path(row['job_id'])}/logs",
    }


def attempt(item: Row) -> View:
    return {
        "attempt": item["attempt"],
        "outcome": item["outcome"],
        "machine_id": item["machine_id"],
        "exit_code": item["exit_code"],
        "signal": item["signal"],
        "assigned_at": moment(datetime.fromisoformat(item["assigned_at"])),
        "started_at": item["started_at"] and moment(datetime.fromisoformat(item["started_at"])),
        "ended_at": item["ended_at"] and moment(datetime.fromisoformat(item["ended_at"])),
        "detail": item["detail"],
        "evidence": item["evidence"] or [],
    }


def machine(row: Row) -> View:
    """A machine; of its jobs the number alone, since they are other tenants' too."""
    return {
        "machine_id": row["machine_id"],
        "status": row["status"],
        "resources": resources(row),
        "labels": row["labels"],
        "running_jobs": row["running_jobs"],
        "admitted_at": moment(row["admitted_at"]),
        "changed_at": moment(row["changed_at"]),
    }


def tenant(row: Row) -> View:
    return {"tenant": row["tenant"], "created_at": moment(row["created_at"])}


def key(row: Row) -> View:
    return {
        "key_id": row["key_id"],
        "name": row["name"],
        "created_at": moment(row["created_at"]),
        "revoked_at": moment(row["revoked_at"]),
    }


def new_key(row: Row, api_key: str) -> View:
    return {
        "key_id": row["key_id"],
        "name": row["name"],
        "created_at": moment(row["created_at"]),
        "api_key": api_key,
    }


def resources(amount: Row) -> View:
    return {"cpu": decimal(amount["cpu_millis"], 1000), "memory_gb": decimal(amount["memory_mib"], 1024)}


def decimal(amount: int, per_unit: int) -> int | float:
    """Units; a whole number where it is one."""
    return amount // per_unit if amount % per_unit == 0 else amount / per_unit


def moment(at: datetime | None) -> str | None:
    """RFC 3339 in UTC with milliseconds."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def page(name: str, items: Iterable[View], next_cursor: str | None) -> View:
    return {name: list(items), "next_cursor": next_cursor}


# ---- what a command has come to, from the job's row and the refusal of the command, as one snapshot shows them


def submission_answered(row: Row | None, refusal: Row | None) -> bool:
    return row is not None or refusal is not None


def submission_refused(refusal: Row) -> Problem:
    """What the leader's refusal of a submission means to a client."""
    if refusal["code"] == "conflict":
        return conflict_of_key()
    if refusal["code"] == "quarantined":
        return Problem(422, f"the scheduler could not handle this job and has set it aside: {refusal['detail']}")
    if refusal["code"] == "tenant_not_granted":
        return Problem(403, str(refusal["detail"]))
    # An id of our own that is too old or from the future: the clock of this API's machine is wrong.
    return Problem(503, f"no job was made: {refusal['detail']}; check the clock of the API's machine")


def conflict_of_key() -> Problem:
    return Problem(
        422,
        "this Idempotency-Key has made a job from another body; use a new key for a new job",
        errors=[("Idempotency-Key", "was used with another body")],
    )


def cancel_answered(row: Row | None, refusal: Row | None) -> bool:
    return refusal is not None or (row is not None and (row["status"] in TERMINAL or row["cancel_requested"]))


def cancel_answer(row: Row) -> tuple[int, View]:
    """(status, body) as the job is now; raises Problem 409 where it ended in another way."""
    status = row["status"]
    if status == "cancelled":
        return 200, {"job_id": row["job_id"], "status": status}
    if status in TERMINAL:
        raise Problem(409, f"the job {row['job_id']} has ended before: it is {status}", code="conflict")
    return 202, {"job_id": row["job_id"], "status": status, "cancel_requested": True}
