"""Where the local stack keeps things: one data folder a stack, one cache for every stack of the user."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from jobstream.local.errors import LocalStackError


def default_data() -> Path:
    """The data folder when none is given: `JOBSTREAM_DATA`, else `jobstream` below the user's XDG data folder."""
    given = os.environ.get("JOBSTREAM_DATA")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else _home() / ".local" / "share").absolute() / "jobstream"


def cache() -> Path:
    """The cache folder (jars, JVM start-up cache): `jobstream` below the user's XDG cache folder; may be deleted."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home() / ".cache").absolute() / "jobstream"


def _home() -> Path:
    return Path(os.environ.get("HOME") or Path("~").expanduser())


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files of one stack."""

    data: Path

    @property
    def lock(self) -> Path:
        return self.data / "lock"

    @property
    def state(self) -> Path:
        return self.data / "stack.json"

    @property
    def ports(self) -> Path:
        return self.data / "ports.json"

    @property
    def keys(self) -> Path:
        return self.data / "keys.json"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def kafka(self) -> Path:
        return self.data / "kafka"

    @property
    def postgres(self) -> Path:
        return self.data / "postgres"

    @property
    def postgres_password(self) -> Path:
        return self.data / "postgres.password"

    @property
    def socket(self) -> Path:
        """The folder of PostgreSQL's socket: below /tmp, since a socket's path may have 107 bytes at most."""
        name = hashlib.sha256(os.fsencode(self.data.resolve())).hexdigest()[:12]
        return Path("/tmp") / f"jobstream-{os.getuid()}-{name}"  # noqa: S108 (`postgres` checks whose it is)

    def make(self) -> None:
        """Make the data folder (0700 when it is new) and the folder of the logs."""
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise LocalStackError(
                f"the data folder {self.data} cannot be used ({error}): choose another with --data"
            ) from error
