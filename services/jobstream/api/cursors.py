"""Opaque cursors of lists: a position, bound to whose list it is and how it is filtered. Pure.

The binding is a digest without a secret. It tells a mistake, and protects nothing: the tenant always comes from the API key.
"""

import base64
import binascii
import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson

from jobstream.api.problems import Problem
from jobstream.schemas.ids import JOB_ID_PATTERN

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
CREATED_MICROS_MAX: Final = 4_102_444_800_000_000  # the year 2100: whoever makes a cursor up gets no overflow
TAG_BYTES: Final = 8

Scope = tuple[str | None, ...]  # the kind of list, the tenant, the filters


def write(scope: Scope, position: list[str | int]) -> str:
    content = orjson.dumps(position)
    return base64.urlsafe_b64encode(_tag(scope, content) + content).rstrip(b"=").decode()


def read(scope: Scope, cursor: str) -> list[str | int]:
    """The position; raises Problem 400 where the cursor is not of this list."""
    try:
        whole = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        tag, content = whole[:TAG_BYTES], whole[TAG_BYTES:]
        position = orjson.loads(content)
    except (binascii.Error, ValueError):  # JSONDecodeError and UnicodeEncodeError are ValueErrors
        raise _refused() from None
    if tag != _tag(scope, content) or not isinstance(position, list):
        raise _refused()
    return position


def write_job(scope: Scope, created_at: datetime, job_id: str) -> str:
    return write(scope, [(created_at - EPOCH) // MICROSECOND, job_id])


def read_job(scope: Scope, cursor: str) -> tuple[datetime, str]:
    """(created_at, job_id) of the last job of the page before; raises Problem 400."""
    match read(scope, cursor):
        case [int(micros), str(job_id)] if 0 <= micros <= CREATED_MICROS_MAX and re.fullmatch(JOB_ID_PATTERN, job_id):
            return EPOCH + micros * MICROSECOND, job_id
        case _:
            raise _refused()


def read_name(scope: Scope, cursor: str) -> str:
    """The last name of the page before; raises Problem 400."""
    match read(scope, cursor):
        case [str(name)] if "\x00" not in name:
            return name
        case _:
            raise _refused()


def _tag(scope: Scope, content: bytes) -> bytes:
    return hashlib.blake2b(orjson.dumps(scope) + b"\n" + content, digest_size=TAG_BYTES).digest()


def _refused() -> Problem:
    return Problem(
        400,
        "the cursor is not one of this list with these filters; start again without it",
        errors=[("cursor", "is not valid")],
    )
