"""The lease clock: ticks and heartbeats of one partition, in its order, and nothing else, make a lease older."""

import random
from collections.abc import Callable

import pytest
from tests.support.scheduler_checks import check_log
from tests.support.scheduler_inboxes import PARTITIONS
from tests.support.scheduler_world import TIMES, Leader, assigned, dispatched, kinds, new_cell, running, with_machine

from jobstream.scheduler.leases import TickClock
from jobstream.scheduler.state import Job
from jobstream.schemas import events as ev
from jobstream.schemas.commands import LeaderTick
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES

EXPIRES = TIMES.expires_after_ms


def age(leader: Leader, job: Job) -> int | None:
    """Of a job's lease, in ms; None while it is fresh."""
    partition = leader.state.partition_of(job.tenant)
    assert job.lease is not None
    leases = leader.state.soft.aged.get(partition)
    aged = None if leases is None else leases.get(job.lease.token)
    return None if aged is None else leader.state.soft.clock(HEARTBEATS.name, partition).age_ms - aged[0]


def test_a_tick_counts_the_least_of_broker_time_monotonic_time_and_two_seconds() -> None:
    clock = TickClock()
    cases = [  # appended, elapsed → counted
        (1_000, 900, 0),  # the first tells nothing
        (2_000, 1_000, 1_000),
        (2_500, 1_000, 500),  # the broker's clock says less
        (9_000, 1_000, 1_000),  # the broker's clock jumped ahead
        (8_000, 1_000, 0),  # it jumped back
        (9_000, 1_000, 1_000),
        (29_000, 20_000, 2_000),  # the leader hung, or all was away
    ]
    for number, (appended, elapsed, counted) in enumerate(cases):
        before = clock.age_ms
        assert clock.tick(LeaderTick(epoch=3, number=number, round=1, elapsed_ms=elapsed), appended)
        assert clock.age_ms - before == counted


@pytest.mark.parametrize(("epoch", "number"), [(2, 9), (3, 5), (3, 4)])
def test_a_tick_of_an_older_epoch_and_a_repeat_count_for_nothing(epoch: int, number: int) -> None:
    clock = TickClock()
    clock.tick(LeaderTick(epoch=3, number=4, round=7, elapsed_ms=0), 1_000)
    clock.tick(LeaderTick(epoch=3, number=5, round=7, elapsed_ms=1_000), 2_000)
    assert not clock.tick(LeaderTick(epoch=epoch, number=number, round=9, elapsed_ms=1_000), 3_000)
    assert (clock.age_ms, clock.round, clock.appended_ms) == (1_000, 7, 2_000)


def test_a_new_epochs_first_tick_counts_nothing() -> None:
    clock = TickClock()
    clock.tick(LeaderTick(epoch=3, number=9, round=7, elapsed_ms=0), 1_000)
    clock.tick(LeaderTick(epoch=4, number=1, round=7, elapsed_ms=0), 90_000)
    assert clock.age_ms == 0
    clock.tick(LeaderTick(epoch=4, number=2, round=7, elapsed_ms=1_000), 91_000)
    assert clock.age_ms == 1_000


def test_a_lease_that_was_never_heard_ages_from_the_tick_that_knows_its_round() -> None:
    leader = new_cell()
    with_machine(leader)
    leader.tick()
    leader.round()
    leader.inboxes.now_ms += 1_000
    leader.inboxes.tick(leader.state.epoch, 50, leader.state.round, 1_000)  # made before the assignment's round
    submission = leader.inboxes.submit()
    leader.round()
    job = leader.job(submission)
    leader.inboxes.now_ms += 1_000
    leader.inboxes.tick(leader.state.epoch, 51, leader.state.round - 1, 1_000)  # as made by one who did not know of it
    leader.round()
    assert age(leader, job) is None
    leader.inboxes.now_ms += 1_000
    leader.inboxes.tick(leader.state.epoch, 52, leader.state.round, 1_000)
    leader.round()
    assert age(leader, job) == 1_000


def test_a_heartbeat_makes_a_lease_young_again_at_its_place_in_the_order() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.pass_time(30_000)
    assert age(leader, job) == 29_000
    leader.tick()
    leader.inboxes.heartbeat(job)
    leader.tick()
    leader.round()  # all three in one round: what counts is their order in the partition
    assert age(leader, job) == 1_000


@pytest.mark.parametrize("start", [assigned, running])
def test_a_lease_expires_after_ttl_and_grace_and_not_before(start: Callable[[Leader], Job]) -> None:
    leader = new_cell()
    with_machine(leader)
    leader.tick()
    leader.round()
    job = start(leader)
    assert job.lease is not None
    token = job.lease.token
    leader.pass_time(EXPIRES)
    assert age(leader, job) == EXPIRES and job.lease.token == token
    leader.tick()
    made = leader.round()
    assert ev.AttemptLost in kinds(made)
    lost = next(record.event for record in made.records if isinstance(record.event, ev.AttemptLost))
    assert lost.started == (start is running) and lost.token == token


def test_one_or_two_lost_heartbeats_expire_nothing() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    for _ in range(4):
        leader.pass_time(90_000)
        leader.inboxes.heartbeat(job)
        leader.round()
    assert job.attempt == 1 and job.status == "running"


def test_nothing_expires_without_a_tick_in_its_completions_partition() -> None:
    """What finished in time is still unread there: its report must be read before the job is given to another."""
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    for _ in range(EXPIRES // 1_000 + 20):
        leader.tick(topics=[HEARTBEATS.name, MACHINES.name])
        leader.round()
    assert job.status == "running"
    leader.inboxes.finished(job)
    leader.tick()
    assert ev.JobCompleted in kinds(leader.round())
    assert ev.AttemptLost not in [type(event) for event in leader.log.events()]


def test_an_older_tick_in_completions_does_not_do() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.pass_time(EXPIRES - 2_000)
    for _ in range(5):
        leader.tick(topics=[HEARTBEATS.name])
    leader.inboxes.tick(leader.state.epoch, leader.ticks - 1, leader.state.round, 1_000, [COMPLETIONS.name])
    leader.round()
    assert job.status == "running"
    leader.inboxes.tick(leader.state.epoch, leader.ticks, leader.state.round, 1_000, [COMPLETIONS.name])
    assert ev.AttemptLost in kinds(leader.round())


def test_an_outage_ages_nobody() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.pass_time(10_000)
    leader.inboxes.now_ms += 3_600_000  # no ticks: broker, partition or leader were away
    leader.tick(after_ms=0, elapsed_ms=3_600_000)
    leader.round()
    assert age(leader, job) is not None and age(leader, job) <= 12_000  # type: ignore[operator]
    assert job.status == "running"


def test_a_jump_of_the_brokers_clock_counts_two_seconds_at_most() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.pass_time(10_000)
    before = age(leader, job)
    leader.tick(after_ms=10_000_000, elapsed_ms=10_000_000)
    leader.round()
    assert age(leader, job) == before + 2_000  # type: ignore[operator]


def test_heartbeats_that_piled_up_while_the_leader_hung_are_read_first() -> None:
    leader = new_cell()
    with_machine(leader)
    jobs = [running(leader) for _ in range(3)]
    leader.pass_time(60_000)
    for _ in range(4):
        leader.inboxes.now_ms += 30_000
        for job in jobs:
            leader.inboxes.heartbeat(job)
    for _ in range(EXPIRES // 1_000):
        leader.tick()
    made = leader.round()
    assert not made.records
    assert all(job.status == "running" and job.attempt == 1 for job in jobs)


def test_a_forged_tick_of_an_epoch_to_come_does_not_stop_the_clock() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.tick(2**40, 1, 2**40, 0)
    leader.round()
    leader.pass_time(EXPIRES + 2_000)
    assert job.attempt == 1 and job.lease is None


# ---- after a takeover


def _next(leader: Leader) -> Leader:
    return Leader.elected(leader.inboxes, leader.log)


def test_nothing_expires_before_what_was_read_before_the_takeover_is_read_again() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.pass_time(EXPIRES - 10_000)
    successor = _next(leader)
    assert successor.state.soft.barrier
    for _ in range(EXPIRES // 1_000 + 10):
        successor.tick()
    made = successor.round(most=20)  # signs of life are re-read from before: not up to the barrier yet
    assert successor.state.soft.barrier and not made.records
    while successor.take(0) or any(
        successor.read.get(place, 0) < len(records) for place, records in successor.inboxes.places.items()
    ):
        successor.round(most=20)
    assert not successor.state.soft.barrier
    assert successor.state.jobs[job.key].lease is None


def test_a_takeover_reads_heartbeats_again_and_expires_nobody_who_lives() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.pass_time(EXPIRES - 20_000)
    leader.inboxes.heartbeat(job)
    leader.round()
    for _ in range(3):
        leader = _next(leader)
        leader.round()
        leader.pass_time(10_000)
    assert leader.state.jobs[job.key].status == "running"
    leader.pass_time(EXPIRES)
    assert leader.state.jobs[job.key].lease is None


def test_a_dead_lease_expires_however_often_leaders_change() -> None:
    """What was read again from before the takeover counts: a leader that changes each minute keeps no corpse alive."""
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    for _ in range(4):
        leader.pass_time(60_000)
        leader = _next(leader)
        leader.round()
    assert leader.state.jobs[job.key].lease is None


def test_signs_of_life_that_are_read_again_are_observed_and_answer_nothing() -> None:
    leader = new_cell()
    leader.inboxes.present("m9")  # an unknown machine: answered once
    with_machine(leader)
    job = running(leader)
    leader.inboxes.heartbeat(job)
    leader.round()
    leader.inboxes.finished(job)
    leader.round()
    leader.inboxes.cancel("acme", running(leader).job_id)
    leader.round()
    successor = _next(leader)
    again = [r for r in successor.take() if not isinstance(r.content, LeaderTick)]
    assert {record.topic for record in again} == {HEARTBEATS.name, MACHINES.name}
    made = successor.decide(again)
    assert not made.records and not dispatched(made)
    assert successor.state.machines["m1"].presence == 1
    assert bool(successor.state.fleet.heard[0])
    successor.log.commit(made)
    check_log(successor.log)


def test_a_start_that_nobody_told_is_told_after_the_takeover() -> None:
    leader = new_cell()
    with_machine(leader)
    job = assigned(leader)
    leader.inboxes.heartbeat(job)
    made = leader.decide(leader.take())
    leader.log.commit(made, show=lambda _: False)  # the round's record alone: torn
    successor = _next(leader)
    assert successor.state.jobs[job.key].status == "assigned"
    assert kinds(successor.round()) == [ev.JobStarted]


def test_presences_must_be_fresh_after_a_takeover_too() -> None:
    leader = new_cell()
    with_machine(leader)
    leader.pass_time(2 * TIMES.presence_age_max_ms)
    successor = _next(leader)
    submission = successor.inboxes.submit()
    successor.round()
    assert successor.job(submission).status == "queued"


def test_fifty_leases_expire_in_the_order_of_their_last_signs() -> None:
    leader = new_cell()
    for number in range(PARTITIONS):
        with_machine(leader, f"m{number}", cpu=10_000, memory=10_000)
    jobs = [running(leader, tenant=f"t{number % 7}") for number in range(50)]
    dice = random.Random(1)
    last = {}
    for _ in range(20):
        job = dice.choice(jobs)
        assert job.lease is not None
        leader.inboxes.heartbeat(job, machine_id=job.lease.machine_id)
        leader.tick()
        leader.round()
        last[job.key] = leader.ticks
    leader.pass_time(EXPIRES + 30_000)
    assert sum(isinstance(event, ev.AttemptLost) for event in leader.log.events()) == 50
