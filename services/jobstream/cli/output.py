"""What people and programs read: tables for the former, one JSON document for the latter."""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from cyclopts import Parameter

Json = Annotated[bool, Parameter(help="Print one JSON document.")]  # of every reading command

PLAIN_WIDTH: Final = 10_000  # columns of output that goes to a file or a pipe: nothing is cut there

STYLES: Final[Mapping[str, str]] = {
    "completed": "green",
    "up": "green",
    "running": "cyan",
    "assigned": "cyan",
    "failed": "red",
    "lost": "red",
    "cancelled": "yellow",
    "draining": "yellow",
}


def print_json(document: Any) -> None:
    """One JSON document: indented for a person, one line for a pipe."""
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns; words that are statuses have their colour on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, force_terminal=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = ["" if cell is None else str(cell) for cell in row]
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))  # Text: names are no markup
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def in_words(field: str, value: Any) -> str:
    """A field of the API's answers for people; empty where there is nothing to say."""
    if value is None or value is False or value in ({}, []):
        return ""
    if field.endswith("_at"):
        return moment(value)
    if isinstance(value, Mapping):
        return " ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, list):
        return shlex.join(value) if field == "command" else " ".join(map(str, value))
    return "yes" if value is True else str(value)


def moment(text: str | None) -> str:
    """A time of the API (RFC 3339) in this machine's zone, to the second."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def between(start: str | None, end: str | None) -> str:
    """How long from one time to another, or nothing where one is missing."""
    if not start or not end:
        return ""
    return duration((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


def duration(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `5 min 06 s`, `2 h 03 min`."""
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
