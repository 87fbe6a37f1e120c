"""Old versions of messages become the newest one here, and nowhere else.

An entry maps a `ce_type` that is no longer written to a function from its parsed JSON to (newer type, JSON); chains work.
"""

from collections.abc import Callable, Mapping
from typing import Final

Upcast = Callable[[object], tuple[str, object]]

UPCASTS: Final[Mapping[str, Upcast]] = {}  # every type is still at its first version


def upcast(type_name: str, content: object, table: Mapping[str, Upcast] = UPCASTS) -> tuple[str, object]:
    while (step := table.get(type_name)) is not None:
        type_name, content = step(content)
    return type_name, content
