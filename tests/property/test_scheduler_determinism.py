"""One state and one set of inputs make one round, byte for byte; journal and inputs make the whole log again."""

import copy
import random

import pytest
from tests.support.scheduler_inboxes import PARTITIONS
from tests.support.scheduler_simulation import RULES, Simulation

from jobstream.scheduler.inputs import Input
from jobstream.scheduler.rounds import Round, run_round
from jobstream.scheduler.state import State
from jobstream.scheduler.takeover import raise_barrier, take_over
from jobstream.schemas.codec import encode


def written(made: Round) -> tuple[object, ...]:
    assert made.record is not None
    return (
        [(record.topic, record.partition, record.key, record.stamp, record.value) for record in made.records],
        made.dispatches,
        [(record.cause, fault) for record, fault in made.dead_letters],
        encode(made.record),
    )


@pytest.mark.parametrize("seed", range(20, 26))
def test_the_order_in_which_inputs_arrive_does_not_matter(seed: int) -> None:
    run = Simulation(seed, mortal=False)
    run.run(15_000)
    run.leading = False
    run.run(5_000)
    for _ in range(20):
        run.submit()
    assert run.leader is not None
    inputs = run.leader.take()
    dice = random.Random(seed)
    rounds = []
    for _ in range(4):
        dice.shuffle(inputs)
        rounds.append(written(run_round(copy.deepcopy(run.leader.state), inputs, run.inboxes.now_ms, RULES)))
    assert len(inputs) > 20 and rounds[0][0]
    assert all(made == rounds[0] for made in rounds)


@pytest.mark.parametrize("seed", range(30, 34))
def test_journal_and_inputs_replay_to_the_same_log(seed: int) -> None:
    run = Simulation(seed, mortal=False)
    run.run(40_000)
    state = State(partitions=PARTITIONS)
    take_over(state)
    raise_barrier(state)
    for record in run.log.rounds:
        state.epoch = record.epoch
        inputs: list[Input] = []
        for topic, ranges in record.inputs.items():
            for partition, (first, after) in ranges.items():
                inputs += run.inboxes.places[topic, partition][first:after]
        if record.epoch_start is not None and record.positions is not None:
            for topic, positions in record.positions.items():
                state.positions |= {(topic, partition): offset for partition, offset in positions.items()}
        made = run_round(state, inputs, record.now_ms, RULES, epoch_start=record.epoch_start)
        assert made.record == record
        for fact in made.records:
            assert run.log.places[fact.topic, fact.partition][fact.stamp.sequence] == fact
