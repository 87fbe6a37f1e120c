"""Job statuses with their transition table, attempt outcomes and priorities."""

from typing import Final, Literal, get_args

JobStatus = Literal["waiting", "queued", "assigned", "running", "completed", "failed", "cancelled", "blocked"]
AttemptOutcome = Literal["succeeded", "failed", "timed_out", "lost", "cancelled"]
Priority = Literal["critical", "high", "normal", "low"]
MachineStatus = Literal["up", "draining", "left", "lost"]

JOB_STATUSES: Final[tuple[JobStatus, ...]] = get_args(JobStatus)
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)  # from the most urgent
TERMINAL: Final[frozenset[JobStatus]] = frozenset(("completed", "failed", "cancelled"))
LEASED: Final[frozenset[JobStatus]] = frozenset(("assigned", "running"))

# From each status, where one event can take the job. A run by hand leads from an ended status back to `queued`
# and comes with its feature; `assigned` or `running` to `queued` is a lost or refused attempt.
TRANSITIONS: Final[dict[JobStatus, frozenset[JobStatus]]] = {
    "waiting": frozenset(("queued", "blocked", "cancelled", "failed")),
    "queued": frozenset(("assigned", "cancelled", "failed")),
    "assigned": frozenset(("running", "queued", "completed", "failed", "cancelled")),
    "running": frozenset(("queued", "completed", "failed", "cancelled")),
    "blocked": frozenset(("queued", "waiting", "cancelled")),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
