"""What the demo shows: a table that lives on a terminal, a line for each change where there is none."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jobstream.cli.output import STYLES, between, print_table

if TYPE_CHECKING:
    from rich.table import Table

Job = Mapping[str, Any]  # a job as the API shows it


class Screen:
    """Shows jobs under the demo's own labels. Use it as a context manager."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown: dict[str, Job] = {}
        self._live: Any = None
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, message: str) -> None:
        """A line that stays."""
        line = f"[{time.monotonic() - self._began:5.1f} s] {message}"
        if self._live:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, flush=True)

    def show(self, label: str, job: Job) -> None:
        """What is known of a job now."""
        before = self._shown.get(label)
        self._shown[label] = job
        if before is not None and before["status"] == job["status"]:
            return
        if self._live:
            self._live.update(self._table())
        else:
            machine = job.get("machine_id")
            self.say(f"{label}: {job['status']}{f' on {machine}' if machine and job['status'] != 'queued' else ''}")

    def _table(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("job", "status", "machine"):
            table.add_column(column)
        for label, job in self._shown.items():
            status = Text(job["status"], style=STYLES.get(job["status"], ""))
            table.add_row(label, status, job.get("machine_id") or "")
        return table


def summary(jobs: Mapping[str, Job]) -> None:
    """The table of the jobs at the end; `attempts` make its times."""
    rows = []
    for label, job in jobs.items():
        attempts = job.get("attempts") or []
        last = attempts[-1] if attempts else {}
        rows.append(
            (
                label,
                job["status"],
                last.get("machine_id"),
                len(attempts),
                between(job["created_at"], attempts[0].get("started_at") if attempts else None),
                between(last.get("started_at"), last.get("ended_at")),
            )
        )
    print_table(("job", "status", "machine", "attempts", "wait", "run time"), rows)
