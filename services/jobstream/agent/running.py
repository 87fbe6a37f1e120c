"""What the agent knows of an attempt between its assignment and its report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobstream.schemas.commands import HeldLease
from jobstream.schemas.events import AssignAttempt


@dataclass(slots=True, kw_only=True)
class Running:
    """From when the guardian is asked to start it. `held` from its start to its end: what heartbeats list.

    `ended` is what the guardian said of its end; `report_at` (CLOCK_BOOTTIME ms) when that is reported at the latest.
    """

    assign: AssignAttempt
    folder: str
    held: HeldLease | None = None
    started_at_ms: int | None = None
    ended: Mapping[str, Any] | None = None
    report_at: int | None = None
