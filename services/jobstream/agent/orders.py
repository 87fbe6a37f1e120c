"""Between records and what the guardian is told: readings of dispatches, orders to start, reports. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from jobstream.schemas.codec import decode, types
from jobstream.schemas.commands import (
    HEARTBEAT_LEASES_MAX,
    TEXT_LENGTH_MAX,
    AttemptFinished,
    HeldLease,
    LeaseHeartbeat,
)
from jobstream.schemas.envelope import from_headers
from jobstream.schemas.errors import Unreadable
from jobstream.schemas.events import DISPATCHES, AssignAttempt, CancelAttempt, Dispatch, RevokeAttempt
from jobstream.schemas.states import AttemptOutcome

SHELL: Final = "/bin/sh"
READ_TYPES: Final = types(DISPATCHES)
OUTCOMES: Final[Mapping[str, AttemptOutcome]] = {
    "timed_out": "timed_out",
    "cancelled": "cancelled",
    "stopped": "lost",
    "revoked": "lost",
    "untrusted": "lost",
    "guardian": "lost",
}
DETAILS: Final[Mapping[str, str]] = {
    "stopped": "the machine was being stopped",
    "revoked": "the leader had taken the lease back",
    "untrusted": "the lease was not trusted any more: no heartbeat was acknowledged in time",
    "guardian": "the agent's guardian process had ended, and everything with it",
}


def read_dispatch(headers: Any, value: bytes | None) -> AssignAttempt | CancelAttempt | RevokeAttempt:
    """One record of the mailbox; raises Unreadable."""
    envelope = from_headers(headers)
    if envelope.type not in READ_TYPES:
        raise Unreadable("unknown_type", f"no dispatch has the type {envelope.type[:200]!r}")
    message = decode(envelope.type, value)
    assert isinstance(message, AssignAttempt | CancelAttempt | RevokeAttempt)
    return message


def start_order(assign: AssignAttempt, *, presence_begun: int | None, folder: str, path: str) -> dict[str, Any]:
    """What the guardian is told to start. `path` is the PATH of jobs that set none."""
    spec = assign.spec
    own = {
        "JOBSTREAM_JOB_ID": assign.job_id,
        "JOBSTREAM_TENANT": assign.tenant,
        "JOBSTREAM_ATTEMPT": str(assign.attempt),
        "JOBSTREAM_FENCING_TOKEN": str(assign.token),
        "JOBSTREAM_MACHINE_ID": assign.machine_id,
        "JOBSTREAM_QUEUE": spec.queue,
        "JOBSTREAM_JOB_NAME": spec.name,
        "JOBSTREAM_CPU_MILLIS": str(spec.resources.cpu_millis),
        "JOBSTREAM_MEMORY_MIB": str(spec.resources.memory_mib),
    }
    return {
        "do": "start",
        "token": assign.token,
        "begun": presence_begun,
        "cpu_millis": spec.resources.cpu_millis,
        "memory_mib": spec.resources.memory_mib,
        "argv": [SHELL, "-c", spec.command] if isinstance(spec.command, str) else list(spec.command),
        "env": {"PATH": path, "HOME": folder, "LANG": "C.UTF-8", **spec.env, **own},
        "folder": folder,
        "timeout_ms": spec.timeout_ms,
    }


def lease_fields(dispatch: Dispatch) -> dict[str, Any]:
    """What every report on a lease names."""
    return {
        "tenant": dispatch.tenant,
        "job_id": dispatch.job_id,
        "attempt": dispatch.attempt,
        "token": dispatch.token,
        "machine_id": dispatch.machine_id,
        "session": dispatch.session,
    }


def finished(lease: Mapping[str, Any], started_at_ms: int, ended: Mapping[str, Any]) -> AttemptFinished:
    """The report of an attempt from the guardian's words on its end."""
    reason, exit_code, detail = ended["reason"], ended["exit_code"], ended["detail"]
    outcome: AttemptOutcome = OUTCOMES[reason] if reason is not None else "succeeded" if exit_code == 0 else "failed"
    return AttemptFinished(
        **lease,
        outcome=outcome,
        exit_code=exit_code,
        signal=ended["signal"],
        started_at_ms=started_at_ms,
        finished_at_ms=ended["finished_at_ms"],
        detail=cut_text(DETAILS.get(reason) or detail),
    )


def cut_text(text: str | None) -> str | None:
    """As much of a text as an event takes, without NUL, which Postgres does not take."""
    return None if text is None else text.replace("\x00", "")[:TEXT_LENGTH_MAX]


def heartbeats(
    machine_id: str, session: str, number: int, held: Iterable[tuple[str, HeldLease]]
) -> list[LeaseHeartbeat]:
    """One record for each tenant, more where one does not take all; `held` has (tenant, lease). Numbers grow by 1."""
    by_tenant: dict[str, list[HeldLease]] = {}
    for tenant, lease in held:
        by_tenant.setdefault(tenant, []).append(lease)
    parts = [
        (tenant, leases[at : at + HEARTBEAT_LEASES_MAX])
        for tenant, leases in by_tenant.items()
        for at in range(0, len(leases), HEARTBEAT_LEASES_MAX)
    ]
    return [
        LeaseHeartbeat(tenant=tenant, machine_id=machine_id, session=session, number=number + at, leases=tuple(part))
        for at, (tenant, part) in enumerate(parts)
    ]
