"""Errors of reading and making messages."""

from typing import Final

DETAIL_LENGTH_MAX: Final = 500  # a detail may quote the record, which may hold 4 MiB; a dead letter must always fit


class Unreadable(ValueError):
    """A record that no reader can use. `reason` is a code for machines, `detail` says what is wrong, cut where it is long."""

    def __init__(self, reason: str, detail: str) -> None:
        detail = detail[:DETAIL_LENGTH_MAX]
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
