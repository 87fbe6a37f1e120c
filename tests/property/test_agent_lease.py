"""The agent's trust over all sequences: never beyond what the leader counts from, never more than there is room for."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from jobstream.agent.lease import Admitted, Leases, Presences, Refused, Request, SeenTokens

TTL, MARGIN = 1_000, 200
CPU, MEMORY = 1_000, 1_000


class LeasesMachine(RuleBasedStateMachine):
    """A machine's leases beside a model that remembers everything and computes nothing cleverly.

    Sendings are begun, acknowledged in any order, late, or never; time jumps as it does for a frozen machine.
    """

    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.presences = Presences()
        self.leases = Leases(ttl_ms=TTL, margin_ms=MARGIN, cpu_millis=CPU, memory_mib=MEMORY, seen=SeenTokens(8))
        self.signs: dict[int, list[int]] = {}  # token → begun times of what counts for it
        self.room: dict[int, tuple[int, int]] = {}
        self.dealt: set[int] = set()
        self.trust_ended: set[int] = set()

    @rule(step=st.integers(0, 300) | st.just(5_000))
    def time_passes(self, step: int) -> None:
        self.now += step
        for token, begun in self.signs.items():
            if self.now >= max(begun) + TTL - MARGIN:
                self.trust_ended.add(token)

    @rule()
    def a_presence_is_sent(self) -> None:
        self.presences.begin(self.now)

    @rule(
        token=st.integers(0, 40),
        back=st.integers(-1, 3),
        cpu=st.integers(1, 600),
        memory=st.integers(1, 600),
    )
    def an_assignment_arrives(self, token: int, back: int, cpu: int, memory: int) -> None:
        begun = self.presences.begun(self.presences.number - back)
        forgotten = token <= self.leases.seen.floor  # because of newer ones
        answer = self.leases.admit(
            Request(token=token, presence_begun=begun, cpu_millis=cpu, memory_mib=memory), self.now
        )
        if token in self.dealt or forgotten:
            assert answer is None
        elif isinstance(answer, Admitted):
            assert begun is not None and self.now < begun + TTL - MARGIN == answer.trusted_until
            self.signs[token] = [begun]
            self.room[token] = (cpu, memory)
        elif isinstance(answer, Refused):
            used = [sum(part) for part in zip(*self.room.values(), strict=True)] or [0, 0]
            late = begun is None or self.now >= begun + TTL - MARGIN
            full = used[0] + cpu > CPU or used[1] + memory > MEMORY
            assert late if answer.code == "late" else answer.code == "no_room" and full and not late
        else:
            raise AssertionError("a new token was ignored")
        self.dealt.add(token)

    @rule(target=sent)
    def a_heartbeat_is_sent(self) -> tuple[int, tuple[int, ...]]:
        return self.now, tuple(self.leases.held)

    @rule(beat=consumes(sent))
    def it_is_acknowledged(self, beat: tuple[int, tuple[int, ...]]) -> None:
        begun, tokens = beat
        self.leases.acknowledged(begun, tokens, self.now)
        for token in tokens:
            if token in self.signs and token not in self.trust_ended:
                self.signs[token].append(begun)

    @rule(token=st.integers(0, 40))
    def a_cancel_or_revoke_arrives(self, token: int) -> None:
        forgotten = token <= self.leases.seen.floor
        assert self.leases.ban(token) == (token not in self.dealt and not forgotten)
        self.dealt.add(token)

    @precondition(lambda self: self.leases.held)
    @rule(data=st.data())
    def an_attempt_ends(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.leases.held)))
        self.leases.close(token)
        del self.signs[token], self.room[token]
        self.trust_ended.discard(token)

    @invariant()
    def trust_is_exactly_what_the_signs_allow(self) -> None:
        assert set(self.leases.untrusted(self.now)) == self.trust_ended
        for token, lease in self.leases.held.items():
            assert lease.trusted_until == max(self.signs[token]) + TTL - MARGIN

    @invariant()
    def room_is_whole(self) -> None:
        assert self.leases.free_cpu_millis == CPU - sum(cpu for cpu, _ in self.room.values()) >= 0
        assert self.leases.free_memory_mib == MEMORY - sum(memory for _, memory in self.room.values()) >= 0


LeasesMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLeases = LeasesMachine.TestCase
