"""The same facts make the same state, in whatever order the partitions are read, live or from a half-read snapshot."""

import copy
import functools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scheduler_checks import comparable
from tests.support.scheduler_inboxes import PARTITIONS
from tests.support.scheduler_simulation import Simulation

from jobstream.scheduler import invariants
from jobstream.scheduler.state import State
from jobstream.scheduler.takeover import Tail, resume_after, take_over

SEEDS = 5


@functools.cache
def history(seed: int) -> Simulation:
    """A cell's past with several epochs, torn rounds among them."""
    run = Simulation(seed)
    run.run(60_000)
    return run


def taken_over(state: State, tail: Tail) -> dict[str, Any]:
    resume_after(state, tail)
    take_over(state)
    invariants.check(state, torn=True)
    return comparable(state)


@functools.cache
def as_written(seed: int) -> dict[str, Any]:
    state, tail = State(partitions=PARTITIONS), Tail()
    history(seed).log.follow(state, tail)
    return taken_over(state, tail)


@given(seed=st.integers(0, SEEDS - 1), order=st.randoms(use_true_random=False), cut=st.booleans())
@settings(max_examples=40, deadline=None)
def test_partitions_may_be_read_in_any_order(seed: int, order: random.Random, cut: bool) -> None:
    log = history(seed).log
    state, tail = State(partitions=PARTITIONS), Tail()
    if cut:  # as loaded from a projection that is at another place in each partition
        below = {place: order.randint(0, len(records)) for place, records in log.places.items()}
        log.follow(state, tail, order, below)
    log.follow(state, tail, order)
    assert taken_over(state, tail) == as_written(seed)


@pytest.mark.parametrize("seed", range(10, 16))
def test_a_follower_and_the_leader_have_one_state(seed: int) -> None:
    run = Simulation(seed, mortal=False)
    run.run(40_000)
    assert run.leader is not None
    live = copy.deepcopy(run.leader.state)
    state, tail = State(partitions=PARTITIONS), Tail()
    run.log.follow(state, tail, random.Random(seed))
    assert state.digest == live.digest == run.log.rounds[-1].digest
    assert tail.last_is_whole(state.next_sequence)
    take_over(live)
    assert taken_over(state, tail) == comparable(live)
