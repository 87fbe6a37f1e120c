"""The output of one attempt on its way to the log store: cut at a limit, in chunks that are soon there. Pure; ms."""

from typing import Final

FIRST_DELAY_MS: Final = 50  # who follows a job sees its first line at once
DELAY_MS_MAX: Final = 1_000  # and later ones within a second; each chunk doubles the delay
CHUNK_BYTES: Final = 256 * 1024  # enough for a chunk at once
BUFFER_BYTES_MAX: Final = 1024 * 1024  # of one attempt: what waits while chunks are written; a chunk takes it all


def cut_marker(limit: int) -> bytes:
    return b"\n[jobstream: output cut here: over %d bytes]\n" % limit


def lost_marker(count: int) -> bytes:
    return b"\n[jobstream: %d bytes of output are missing here: the log store did not answer]\n" % count


class Output:
    """Bytes in, chunks out. `stored` and `chunks` count what was taken."""

    def __init__(self, limit: int) -> None:
        self.chunks = 0
        self.stored = 0
        self.cut = False  # something is missing: over the limit, or lost
        self._limit = limit
        self._left = limit  # of the limit
        self._over = False  # more came than the limit: nothing is kept any more
        self._lost = 0
        self._buffer = bytearray()
        self._since: int | None = None  # when the oldest byte of the buffer came

    @property
    def full(self) -> bool:
        """Nothing more can be kept until a chunk is taken."""
        return not self._over and len(self._buffer) >= BUFFER_BYTES_MAX

    @property
    def empty(self) -> bool:
        return not self._buffer

    def feed(self, data: bytes, now: int) -> None:
        """Keep what comes, as far as the limit; beyond it nothing but a marker."""
        if self._over:
            return
        if self._lost:
            self._buffer += lost_marker(self._lost)
            self._lost = 0
        if self._since is None:
            self._since = now
        if len(data) > self._left:
            self._buffer += data[: self._left] + cut_marker(self._limit)
            self._over = self.cut = True
        else:
            self._buffer += data
            self._left -= len(data)

    def lose(self, count: int) -> None:
        """So many bytes cannot be kept. A marker tells, once there is room again."""
        if not self._over:
            self._lost += count
            self.cut = True

    def finish(self, now: int) -> None:
        """No more will come."""
        if self._lost:
            self.feed(b"", now)

    def due_at(self) -> int | None:
        """When the next chunk should be written; 0 for at once, None where there is nothing."""
        if self._since is None:
            return None
        if len(self._buffer) >= CHUNK_BYTES:
            return 0
        return self._since + min(FIRST_DELAY_MS << min(self.chunks, 10), DELAY_MS_MAX)

    def take(self) -> bytes:
        """The next chunk, at most BUFFER_BYTES_MAX; the caller writes it as number `chunks - 1`."""
        chunk = bytes(self._buffer[:BUFFER_BYTES_MAX])
        del self._buffer[: len(chunk)]
        if not self._buffer:
            self._since = None
        self.chunks += 1
        self.stored += len(chunk)
        return chunk
