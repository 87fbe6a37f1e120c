"""Errors of reading and making messages."""


class Unreadable(ValueError):
    """A record that no reader can use. `reason` is a code for machines, `detail` says what is wrong."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
