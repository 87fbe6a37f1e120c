"""The ids of jobs that have ended, for a window: what makes a repeated submission a no-op.

Two million jobs in 48 hours: kept in generations of plain dicts, about 200 bytes a job, and forgotten a dict at a time.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from jobstream.schemas.states import JobStatus

WINDOW_MS: Final = 48 * 3600 * 1000  # how long the id of a job that has ended is known, at least
GENERATION_MS: Final = 6 * 3600 * 1000

_DIGEST_DIGITS: Final = 15  # 60 bits of the digest: two bodies under one id that agree in them do not happen by chance
_STATUS_BITS: Final = 2
_STATUSES: Final[tuple[JobStatus, ...]] = ("completed", "failed", "cancelled")


@dataclass(slots=True)
class Memory:
    # (when its first job ended, job → digest and status), oldest first.
    generations: deque[tuple[int, dict[bytes, int]]] = field(default_factory=deque)

    def add(self, tenant: str, job_id: str, status: JobStatus, digest: str, ended_ms: int) -> None:
        """Remember an end. Ends come in the order of time, but for what a takeover loads, which is sorted."""
        if not self.generations or ended_ms >= self.generations[-1][0] + GENERATION_MS:
            self.generations.append((ended_ms, {}))
        packed = int(digest[:_DIGEST_DIGITS], 16) << _STATUS_BITS | _STATUSES.index(status)
        self.generations[-1][1][_key(tenant, job_id)] = packed

    def status(self, tenant: str, job_id: str) -> JobStatus | None:
        """How a job ended; None where it is not known."""
        packed = self._find(tenant, job_id)
        return None if packed is None else _STATUSES[packed & (1 << _STATUS_BITS) - 1]

    def same_digest(self, tenant: str, job_id: str, digest: str) -> bool:
        packed = self._find(tenant, job_id)
        return packed is not None and packed >> _STATUS_BITS == int(digest[:_DIGEST_DIGITS], 16)

    def forget(self, before_ms: int) -> None:
        """Drop the generations of which every job ended before `before_ms`."""
        while len(self.generations) > 1 and self.generations[1][0] <= before_ms:
            self.generations.popleft()

    def __len__(self) -> int:
        return sum(len(jobs) for _, jobs in self.generations)

    def _find(self, tenant: str, job_id: str) -> int | None:
        key = _key(tenant, job_id)
        for _, jobs in reversed(self.generations):
            if (packed := jobs.get(key)) is not None:
                return packed
        return None


def _key(tenant: str, job_id: str) -> bytes:
    return bytes.fromhex(job_id.replace("-", "")) + tenant.encode()
