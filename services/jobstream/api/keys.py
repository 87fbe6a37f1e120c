"""API keys: their form, what is kept of them, and whose they are. Only a digest of a key is stored.

A key is `js_<key id>_<43 characters>`: 256 random bits as base64url, whose SHA-256 nobody turns back: no slow hash is needed.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Final

from jobstream.api import queries
from jobstream.api.database import Database
from jobstream.api.problems import Problem

KEY_FORM: Final = re.compile(r"js_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
KEY_ID_FORM: Final = re.compile(r"[0-9a-f]{16}")
CACHE_S: Final = 1.0  # a key that another process revoked works for so long at most
CACHE_KEYS_MAX: Final = 10_000
REALM: Final = 'Bearer realm="jobstream"'


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made; `key` is shown once and then gone."""

    key_id: str
    key: str = field(repr=False)
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. No tenant: an admin."""

    key_id: str
    tenant: str | None


def new_key() -> NewKey:
    key_id = secrets.token_hex(8)
    key = f"js_{key_id}_{secrets.token_urlsafe(32)}"
    return NewKey(key_id=key_id, key=key, digest=digest_of_key(key))


def digest_of_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Keys:
    """Whose a key is. Remembered for a second, and forgotten at once where this process revokes it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[bytes, tuple[float, Caller]] = {}
        self._looking: dict[bytes, asyncio.Future[Caller]] = {}

    async def caller(self, key: str | None) -> Caller:
        """Raises Problem 401, or 503 where the keys cannot be read."""
        if key is None:
            raise Problem(401, "send an API key: Authorization: Bearer js_…", headers={"WWW-Authenticate": REALM})
        match = KEY_FORM.fullmatch(key)
        if match is None:
            raise _unknown()
        digest = digest_of_key(key)
        known = self._known.get(digest)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        looking = self._looking.get(digest)
        if looking is None:  # one look-up for all requests of this moment
            looking = self._looking[digest] = asyncio.ensure_future(self._look_up(match[1], digest))
            looking.add_done_callback(lambda _: self._looking.pop(digest))
        return await asyncio.shield(looking)  # who asked first may leave

    def forget(self, key_id: str) -> None:
        for digest in [digest for digest, (_, caller) in self._known.items() if caller.key_id == key_id]:
            del self._known[digest]

    async def _look_up(self, key_id: str, digest: bytes) -> Caller:
        asked_at = time.monotonic()
        rows = await self._database.rows(queries.KEY, {"key_id": key_id})
        if not rows or not hmac.compare_digest(rows[0]["secret"], digest):
            self._known.pop(digest, None)
            raise _unknown()
        caller = Caller(key_id=key_id, tenant=rows[0]["tenant"])
        if len(self._known) >= CACHE_KEYS_MAX:
            self._known.clear()
        self._known[digest] = (asked_at + CACHE_S, caller)
        return caller


def _unknown() -> Problem:
    return Problem(
        401,
        "this API key is unknown or was revoked",
        headers={"WWW-Authenticate": f'{REALM}, error="invalid_token"'},
    )
