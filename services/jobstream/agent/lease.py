"""What a machine may run and for how long: trust in leases, seen tokens, room. Pure; times are CLOCK_BOOTTIME in ms.

Trust always counts from when a sign of life *began* to be sent, so that it ends before the leader, which counts from
when the sign reached the log, can give the job to another machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Refusal = Literal["late", "draining", "no_room"]  # codes of AttemptRefused

# A dispatch names a presence of at most TTL - margin ago, and one is sent every heartbeat period, which is below half
# of that; with the early one at registration three would do.
PRESENCES_MAX: Final = 64
# Tokens only grow, and a token older than this many newer ones of one machine cannot be in time any more: what is
# forgotten raises the floor below which nothing starts. 10,000 tokens take 1 MB.
SEEN_TOKENS_MAX: Final = 10_000


class Presences:
    """When the newest presences of a session began to be sent."""

    def __init__(self) -> None:
        self.number = 0
        self._begun: dict[int, int] = {}

    def begin(self, now: int) -> int:
        """The number of the presence that is about to be sent."""
        self.number += 1
        self._begun[self.number] = now
        self._begun.pop(self.number - PRESENCES_MAX, None)
        return self.number

    def begun(self, number: int) -> int | None:
        """When it began to be sent; None where it was never sent or is long ago."""
        return self._begun.get(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An assignment as the agent passes it on. `presence_begun` is None where the presence is unknown."""

    token: int
    presence_begun: int | None
    cpu_millis: int
    memory_mib: int


@dataclass(slots=True, kw_only=True)
class Lease:
    trusted_until: int
    cpu_millis: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """Start the process; the lease is trusted until then, unless an acknowledged heartbeat extends it."""

    trusted_until: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Not started, and its token never will be."""

    code: Refusal


class SeenTokens:
    """Tokens that must not be started (again). Holds the newest SEEN_TOKENS_MAX; all up to `floor` count as seen."""

    def __init__(self, most: int = SEEN_TOKENS_MAX) -> None:
        self.floor = -1
        self._most = most
        self._tokens: set[int] = set()

    def __contains__(self, token: int) -> bool:
        return token <= self.floor or token in self._tokens

    def add(self, token: int) -> None:
        if token in self:
            return
        self._tokens.add(token)
        if len(self._tokens) > self._most:
            kept = sorted(self._tokens)[len(self._tokens) // 2 :]  # half at once: on average sorting costs nothing
            self.floor = kept[0] - 1
            self._tokens = set(kept)


class Leases:
    """The leases that one session of a machine holds."""

    def __init__(
        self, *, ttl_ms: int, margin_ms: int, cpu_millis: int, memory_mib: int, seen: SeenTokens | None = None
    ) -> None:
        assert 0 < margin_ms < ttl_ms
        self.trust_ms: Final = ttl_ms - margin_ms
        self.free_cpu_millis = cpu_millis
        self.free_memory_mib = memory_mib
        self.draining = False
        self.held: dict[int, Lease] = {}
        self.seen = SeenTokens() if seen is None else seen

    def admit(self, request: Request, now: int) -> Admitted | Refused | None:
        """May this start now? None: the token was dealt with before, there is nothing to say.

        What was ever started or refused is not refused again: the leader could read that before the report of its end.
        """
        token = request.token
        if token in self.seen:
            return None
        self.seen.add(token)
        if self.draining:
            return Refused("draining")
        if request.presence_begun is None or now >= request.presence_begun + self.trust_ms:
            return Refused("late")
        if request.cpu_millis > self.free_cpu_millis or request.memory_mib > self.free_memory_mib:
            return Refused("no_room")
        self.free_cpu_millis -= request.cpu_millis
        self.free_memory_mib -= request.memory_mib
        until = request.presence_begun + self.trust_ms
        self.held[token] = Lease(trusted_until=until, cpu_millis=request.cpu_millis, memory_mib=request.memory_mib)
        return Admitted(until)

    def acknowledged(self, begun: int, tokens: Iterable[int], now: int) -> None:
        """A heartbeat that listed these leases, begun then, is in the log. It extends only what is still trusted."""
        for token in tokens:
            lease = self.held.get(token)
            if lease is not None and now < lease.trusted_until:
                lease.trusted_until = max(lease.trusted_until, begun + self.trust_ms)

    def ban(self, token: int) -> bool:
        """Never start this token. True where it had not been seen: nothing of it was or will be started."""
        if token in self.seen:
            return False
        self.seen.add(token)
        return True

    def untrusted(self, now: int) -> list[int]:
        """Tokens whose trust has ended."""
        return [token for token, lease in self.held.items() if now >= lease.trusted_until]

    def next_end(self) -> int | None:
        """When trust ends next."""
        return min((lease.trusted_until for lease in self.held.values()), default=None)

    def close(self, token: int) -> None:
        """Nothing of the attempt lives any more."""
        lease = self.held.pop(token)
        self.free_cpu_millis += lease.cpu_millis
        self.free_memory_mib += lease.memory_mib
