"""A round's transaction may show any part of it. Whatever is visible is a fact; every input is answered once, none twice."""

import itertools
import random
from collections.abc import Iterator

import pytest
from tests.support.scheduler_checks import causes_to_answer, check_log
from tests.support.scheduler_inboxes import Inboxes
from tests.support.scheduler_simulation import RULES, Simulation
from tests.support.scheduler_world import Leader, Log

from jobstream.scheduler.evolve import evolve_round
from jobstream.scheduler.rounds import LogRecord, Round
from jobstream.scheduler.state import PartitionKey
from jobstream.topics.catalogue import COMPLETIONS, SUBMISSIONS

SEEDS = 6
CUTS = 30  # of one round, beyond all-or-nothing

Cut = tuple[dict[PartitionKey, int], bool]  # sequence numbers from which a partition shows nothing; the round's record


def cuts(made: Round, dice: random.Random) -> Iterator[Cut]:
    """Each partition whole or hidden, in every combination; then some that end within a partition."""
    places = sorted(made.written.items())
    every = list(itertools.product(*[(first, after) for _, (first, after) in places]))
    for ends in every if len(every) <= 64 else dice.sample(every, 64):
        for whole in (True, False):
            yield {place: end for (place, _), end in zip(places, ends, strict=True)}, whole
    for _ in range(CUTS):
        yield {place: dice.randint(first, after) for place, (first, after) in places}, dice.random() < 0.5


def tear(log: Log, made: Round, cut: Cut) -> None:
    ends, whole = cut

    def show(record: LogRecord) -> bool:
        return record.stamp.sequence < ends[record.topic, record.partition]

    log.commit(made, show=show, whole=whole)


def copied(inboxes: Inboxes, log: Log) -> tuple[Inboxes, Log]:
    """A world of its own that has the same past."""
    return (
        Inboxes(inboxes.now_ms, {place: list(records) for place, records in inboxes.places.items()}, inboxes.made),
        Log({place: list(records) for place, records in log.places.items()}, list(log.rounds)),
    )


def succeed(inboxes: Inboxes, log: Log, dice: random.Random, deaths: int) -> Leader:
    """Leaders one after the other: all but the last die in one of their first rounds, which is torn too.

    Each has stood by from the beginning, or loads what is projected.
    """
    while True:
        leader = Leader(inboxes, log, rules=RULES)
        if dice.random() < 0.5:
            log.follow(leader.state, leader.tail, dice)
        else:
            log.load(leader.state, leader.tail)
        leader.take_over()
        lives = dice.randrange(4) if deaths else 10_000
        made = leader.first_round()
        while lives and (unread := leader.take(dice.choice([1, 2, 5]))):
            log.commit(made)
            made = leader.decide(unread)
            lives -= 1
        if not deaths:
            log.commit(made)
            return leader
        tear(log, made, dice.choice(list(cuts(made, dice))))
        deaths -= 1


def check_answers(inboxes: Inboxes, log: Log) -> None:
    check_log(log)
    answered = [record.stamp.cause for record in log.records()]
    inputs = {cause for cause in causes_to_answer(inboxes) if cause.startswith((SUBMISSIONS.name, COMPLETIONS.name))}
    assert inputs <= set(answered), f"unanswered: {sorted(inputs - set(answered))[:5]}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_cut_of_a_round_is_healed_by_the_next_leader(seed: int) -> None:
    run = Simulation(seed, mortal=False)
    run.run(20_000)
    run.leading = False
    run.run(4_000)
    for _ in range(8):
        run.submit()
    assert run.leader is not None
    last = run.leader.decide(run.leader.take())
    assert len(last.written) > 2
    dice = random.Random(seed)
    for cut in cuts(last, dice):
        inboxes, log = copied(run.inboxes, run.log)
        tear(log, last, cut)
        leader = succeed(inboxes, log, dice, deaths=dice.choice([0, 1, 3]))
        check_answers(inboxes, log)
        assert leader.state.now_ms >= last.now_ms or not any(
            record.stamp.round == last.number for record in log.records()
        )


def test_a_standby_that_saw_the_torn_round_goes_back_with_the_leader_after_it() -> None:
    """The torn round's record says that its inputs are read; the next epoch's first record says that they are not."""
    inboxes, log = Inboxes(), Log()
    leader = Leader.elected(inboxes, log)
    submissions = [inboxes.submit() for _ in range(3)]
    torn = leader.decide(leader.take())
    log.commit(torn, show=lambda record: record.stamp.index == 0)
    second = Leader.elected(inboxes, log)
    assert second.answered == {submissions[0].cause}
    third = Leader.elected(inboxes, log)  # the second died after its first round; this one read both rounds
    assert third.answered == {submissions[0].cause}
    third.round()
    check_answers(inboxes, log)
    assert len(third.state.jobs) == 3


def test_what_a_torn_round_answered_stays_answered_in_a_new_epoch_of_one_leader() -> None:
    """A doubtful commit keeps the state: what is still to be read again must not be answered again either."""
    inboxes, log = Inboxes(), Log()
    leader = Leader.elected(inboxes, log)
    submissions = [inboxes.submit() for _ in range(4)]
    torn = leader.decide(leader.take())
    log.commit(torn, whole=False)
    second = Leader.elected(inboxes, log)
    second.round(most=1)
    second.tail = type(second.tail)()
    second.take_over()
    log.commit(second.first_round())
    assert second.answered == {submission.cause for submission in submissions[1:]}
    second.round()
    check_answers(inboxes, log)


def test_a_reader_that_begins_at_a_torn_round_with_positions_does_not_begin_at_zero() -> None:
    """A leader without a standby looks for the newest record that names every position: it may be the torn one."""
    inboxes, log = Inboxes(), Log()
    leader = Leader.elected(inboxes, log)
    while leader.state.round < 63:
        inboxes.submit()
        leader.round()
    inboxes.submit()
    torn = leader.decide(leader.take())
    assert torn.record is not None and torn.record.positions is not None
    log.commit(torn, show=lambda _: False)
    fresh = Leader(inboxes, log)
    log.follow(fresh.state, fresh.tail, below={place: len(records) for place, records in log.places.items()})
    fresh.tail.saw_round(log.rounds[-1], fresh.state.positions)  # its follower starts here
    evolve_round(fresh.state, log.rounds[-1])
    fresh.take_over()
    log.commit(fresh.first_round())
    fresh.round()
    check_answers(inboxes, log)
    assert len(log.places) == 1 and len(log.records()) == 63
