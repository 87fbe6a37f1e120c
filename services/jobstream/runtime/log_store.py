"""The output of attempts in an object store: a local folder (`file:///…`), S3 and others by URL, through obstore.

An attempt's merged stdout and stderr are chunks `{tenant}/{job_id}/{attempt}-{token}/{number:08d}.log`, numbered
densely from 0 and never changed, so that a reader follows by asking for the next number; `end.json` comes last.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import obstore
import orjson
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from jobstream.runtime.errors import ConfigurationError, Unavailable
from jobstream.schemas.ids import JOB_ID_PATTERN, TENANT_PATTERN

CHUNK_BYTES_MAX: Final = 1024 * 1024  # what a reader must hold at once
CHUNK_NUMBER_MAX: Final = 99_999_999  # eight digits, so that names sort as numbers do
RETRIES_MAX: Final = 2  # callers retry with back-off themselves, and can say what they wait for
RETRY_TIME: Final = timedelta(seconds=10)
CHUNK_NAME: Final = re.compile(r"(?a:(\d{8})\.log)")
_NUMBER_MAX: Final = 2**63 - 1
_NOT_FOUND: Final = (NotFoundError, FileNotFoundError)  # obstore raises the latter, which is no BaseError
_FAILURES: Final = (BaseError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLog:
    """Whose output. Raises ValueError where a part has not the form of an id, so that no path leaves the root."""

    tenant: str
    job_id: str
    attempt: int
    token: int

    def __post_init__(self) -> None:
        if not re.fullmatch(TENANT_PATTERN, self.tenant) or "\n" in self.tenant:
            raise ValueError(f"no tenant: {self.tenant[:80]!r}")
        if not re.fullmatch(JOB_ID_PATTERN, self.job_id) or "\n" in self.job_id:
            raise ValueError(f"no job id: {self.job_id[:80]!r}")
        if not 0 <= self.attempt <= _NUMBER_MAX or not 0 <= self.token <= _NUMBER_MAX:
            raise ValueError(f"no attempt: {self.attempt}-{self.token}")

    @property
    def folder(self) -> str:
        return f"{self.tenant}/{self.job_id}/{self.attempt:d}-{self.token:d}"

    @property
    def end(self) -> str:
        return f"{self.folder}/end.json"

    def chunk(self, number: int) -> str:
        if not 0 <= number <= CHUNK_NUMBER_MAX:
            raise ValueError(f"no chunk number: {number}")
        return f"{self.folder}/{number:08d}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """A complete log: `bytes` in all of its `chunks` chunks; `cut` where output was dropped (a marker line says so)."""

    bytes: int
    cut: bool
    chunks: int


class LogStore:
    """Chunks by number. Every method raises Unavailable where the store does not answer or refuses.

    The blocking methods are for agents, the `_async` ones for the API; both are safe from many threads.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = open_store(url)

    def write_chunk(self, log: AttemptLog, number: int, content: bytes) -> None:
        """Write one chunk whole or not at all. Writing it again with the same content changes nothing."""
        assert 0 < len(content) <= CHUNK_BYTES_MAX, len(content)
        self._put(log.chunk(number), content)

    def write_end(self, log: AttemptLog, end: LogEnd) -> None:
        """Say that the log is complete; after its last chunk."""
        self._put(log.end, orjson.dumps({"bytes": end.bytes, "cut": end.cut, "chunks": end.chunks}))

    def read_chunk(self, log: AttemptLog, number: int) -> bytes | None:
        """One chunk; None where it is not there (yet)."""
        return self._get(log.chunk(number))

    def read_end(self, log: AttemptLog) -> LogEnd | None:
        """The end of a complete log, else None. Ask before the chunks: what is there then is all there is."""
        return _parse_end(self._get(log.end))

    def list_chunks(self, log: AttemptLog, first: int = 0) -> list[tuple[int, int]]:
        """(number, bytes) of the chunks from number `first` on, in order."""
        try:
            found = [meta for batch in obstore.list(self._store, prefix=log.folder) for meta in batch]
        except _FAILURES as error:
            raise _unavailable(self.url, log.folder, error) from error
        return _numbered([(meta["path"], meta["size"]) for meta in found], first)

    async def read_chunk_async(self, log: AttemptLog, number: int) -> bytes | None:
        """As read_chunk."""
        return await self._get_async(log.chunk(number))

    async def read_end_async(self, log: AttemptLog) -> LogEnd | None:
        """As read_end."""
        return _parse_end(await self._get_async(log.end))

    async def list_chunks_async(self, log: AttemptLog, first: int = 0) -> list[tuple[int, int]]:
        """As list_chunks."""
        try:
            found = [meta async for batch in obstore.list(self._store, prefix=log.folder) for meta in batch]
        except _FAILURES as error:
            raise _unavailable(self.url, log.folder, error) from error
        return _numbered([(meta["path"], meta["size"]) for meta in found], first)

    def _put(self, path: str, content: bytes) -> None:
        try:
            obstore.put(self._store, path, content, use_multipart=False)
        except _FAILURES as error:
            raise _unavailable(self.url, path, error) from error

    def _get(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except _NOT_FOUND:
            return None
        except _FAILURES as error:
            raise _unavailable(self.url, path, error) from error

    async def _get_async(self, path: str) -> bytes | None:
        try:
            return bytes(await (await obstore.get_async(self._store, path)).bytes_async())
        except _NOT_FOUND:
            return None
        except _FAILURES as error:
            raise _unavailable(self.url, path, error) from error


def open_store(url: str) -> ObjectStore:
    """The store of a URL; a local folder is made. Raises ConfigurationError, which names no more than the scheme."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            if parts.netloc or not parts.path.startswith("/"):
                raise ConfigurationError(f"the log store {url!r} is no local folder: write file:///path")
            return LocalStore(Path(unquote(parts.path)), mkdir=True)
        if parts.scheme in ("", "memory"):
            raise ConfigurationError(
                f"the log store {url[:200]!r} cannot be shared by agents and the API: "
                "use file:///path, s3://bucket/path or another URL"
            )
        return from_url(
            url,
            retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIME},
            client_options={"timeout": RETRY_TIME, "connect_timeout": timedelta(seconds=5)},
        )
    except (*_FAILURES, ValueError) as error:
        raise ConfigurationError(
            f"the log store of scheme {parts.scheme!r} cannot be opened: {type(error).__name__}: {_first_line(error)}"
        ) from None


def _parse_end(content: bytes | None) -> LogEnd | None:
    if content is None:
        return None
    try:
        found = orjson.loads(content)
        return LogEnd(bytes=int(found["bytes"]), cut=bool(found["cut"]), chunks=int(found["chunks"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"the log store holds an end marker that cannot be read: {error}") from None


def _numbered(objects: list[tuple[str, int]], first: int) -> list[tuple[int, int]]:
    chunks = []
    for path, size in objects:
        match = CHUNK_NAME.fullmatch(path.rpartition("/")[2])
        if match and int(match[1]) >= first:
            chunks.append((int(match[1]), size))
    return sorted(chunks)  # a local store lists in no order


def _unavailable(url: str, path: str, error: Exception) -> Unavailable:
    scheme = urlsplit(url).scheme
    return Unavailable(f"the log store ({scheme}) failed on {path}: {type(error).__name__}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:500]
