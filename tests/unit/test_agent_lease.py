"""Trust in leases: the named cases. The rules over all sequences are in the property tests."""

from jobstream.agent.lease import PRESENCES_MAX, Admitted, Leases, Presences, Refused, Request, SeenTokens

TTL, MARGIN = 90_000, 15_000
TRUST = TTL - MARGIN


def leases() -> Leases:
    return Leases(ttl_ms=TTL, margin_ms=MARGIN, cpu_millis=1_000, memory_mib=1_000)


def request(token: int = 1, begun: int | None = 0, cpu: int = 100, memory: int = 100) -> Request:
    return Request(token=token, presence_begun=begun, cpu_millis=cpu, memory_mib=memory)


def test_an_assignment_starts_within_trust_of_its_presence_and_is_trusted_that_long() -> None:
    assert leases().admit(request(begun=1_000), 1_000 + TRUST - 1) == Admitted(1_000 + TRUST)
    assert leases().admit(request(begun=1_000), 1_000 + TRUST) == Refused("late")
    assert leases().admit(request(begun=None), 5) == Refused("late")


def test_an_agent_that_freezes_between_sending_and_acting_starts_nothing() -> None:
    presences, held = Presences(), leases()
    number = presences.begin(0)
    thawed = TRUST + 1
    assert held.admit(request(begun=presences.begun(number)), thawed) == Refused("late")


def test_an_acknowledgement_extends_trust_only_while_there_is_some() -> None:
    held = leases()
    held.admit(request(), 10)
    held.acknowledged(30_000, [1, 99], 30_100)
    assert held.untrusted(30_000 + TRUST - 1) == []
    assert held.untrusted(30_000 + TRUST) == [1]
    held.acknowledged(60_000, [1], 30_000 + TRUST)  # frozen meanwhile: the leader may have given the job away
    assert held.untrusted(30_000 + TRUST) == [1]


def test_an_old_acknowledgement_takes_no_trust_away() -> None:
    held = leases()
    held.admit(request(begun=50_000), 50_001)
    held.acknowledged(10_000, [1], 50_002)
    assert held.next_end() == 50_000 + TRUST


def test_what_is_seen_is_never_started_and_a_repeat_says_nothing() -> None:
    held = leases()
    assert held.ban(1)
    assert not held.ban(1)
    assert held.admit(request(1), 0) is None
    assert held.admit(request(2, cpu=2_000), 0) == Refused("no_room")
    assert held.admit(request(2, cpu=1), 0) is None
    assert isinstance(held.admit(request(3), 0), Admitted)
    assert not held.ban(3)
    held.close(3)
    assert held.admit(request(3), 0) is None


def test_a_repeat_of_what_ran_is_not_refused_while_draining_or_full() -> None:
    """The leader could read such a refusal before the report of the end, and give the job away."""
    held = leases()
    held.admit(request(1, cpu=1_000), 0)
    held.draining = True
    assert held.admit(request(1, cpu=1_000), 0) is None
    assert held.admit(request(2), 0) == Refused("draining")


def test_room_is_counted_exactly() -> None:
    held = leases()
    assert isinstance(held.admit(request(1, cpu=900), 0), Admitted)
    assert held.admit(request(2, cpu=101), 0) == Refused("no_room")
    assert isinstance(held.admit(request(3, cpu=100), 0), Admitted)
    held.close(1)
    assert isinstance(held.admit(request(4, cpu=900), 0), Admitted)
    assert (held.free_cpu_millis, held.free_memory_mib) == (0, 800)


def test_seen_tokens_are_bounded_and_what_is_forgotten_stays_seen() -> None:
    seen = SeenTokens(most=10)
    for token in range(0, 100, 2):
        seen.add(token)
    assert all(token in seen for token in range(0, 100, 2))
    assert 1 in seen  # below the floor
    assert 97 not in seen and 101 not in seen
    assert seen.floor >= 80 - 1


def test_presences_are_numbered_and_bounded() -> None:
    presences = Presences()
    assert [presences.begin(at) for at in (5, 6)] == [1, 2]
    assert (presences.begun(1), presences.begun(2), presences.begun(3), presences.begun(0)) == (5, 6, None, None)
    for at in range(PRESENCES_MAX):
        presences.begin(at)
    assert presences.begun(2) is None
    assert presences.begun(3) == 0
