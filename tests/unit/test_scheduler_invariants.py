"""The checks themselves: each of these wrongs in a healthy state is found."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.scheduler_world import Leader, assigned, new_cell, running, with_machine

from jobstream.scheduler import invariants
from jobstream.scheduler.state import Job, State


def busy() -> tuple[Leader, State, Job]:
    """A cell with machines, and jobs in every status; the job runs on m1."""
    leader = new_cell()
    with_machine(leader, "m1")
    job = running(leader)
    assigned(leader)
    with_machine(leader, "m2")
    for priority in ("low", "high"):
        for _ in range(3):
            leader.inboxes.submit(cpu=5_000, priority=priority)
    leader.tick()
    leader.round()
    return leader, leader.state, job


def _steal(state: State, job: Job) -> None:
    """Two jobs hold one lease."""
    other = next(one for one in state.jobs.values() if one.lease is not None and one is not job)
    assert other.lease is not None and job.lease is not None
    state.digest += job.lease.token - other.lease.token
    other.lease.token = job.lease.token


def _bucket(state: State) -> Any:
    tenants = next(level for level in state.backlog.levels if level)
    return next(iter(tenants["acme"]["default"].values()))


WRONGS: dict[str, Callable[[State, Job], Any]] = {
    "free above total": lambda state, job: state.fleet.give_back(0, 10_000, 0),
    "free too small": lambda state, job: state.fleet.take(0, 1, 0),
    "memory too large": lambda state, job: state.fleet.give_back(0, 0, 1),
    "two machines in one slot": lambda state, job: setattr(state.machines["m2"], "slot", 0),
    "a slot of nobody": lambda state, job: state.fleet.ids.append("m9"),
    "up, and not": lambda state, job: setattr(state.machines["m1"], "status", "draining"),
    "lost, and not listed": lambda state, job: setattr(state.machines["m1"], "status", "lost"),
    "listed as lost": lambda state, job: state.lost.update({"m1": 1}),
    "another capacity": lambda state, job: setattr(state.machines["m1"], "cpu_millis", 5),
    "a lease nobody counts": lambda state, job: state.leases["m1"].clear(),
    "a lease of nobody": lambda state, job: state.leases["m1"].update({77: ("acme", "x")}),
    "a lease elsewhere": lambda state, job: setattr(job.lease, "machine_id", "m2"),
    "one token twice": _steal,
    "a token to come": lambda state, job: setattr(state, "round", 1),
    "a job under another key": lambda state, job: setattr(job, "tenant", "globex"),
    "running, not started": lambda state, job: setattr(job.lease, "started", False),
    "queued with a lease": lambda state, job: setattr(job, "status", "queued"),
    "ended and live": lambda state, job: setattr(job, "status", "completed"),
    "remembered and live": lambda state, job: state.memory.add(*job.key, "failed", job.digest, 1),
    "another attempt": lambda state, job: setattr(job, "attempt", 2),
    "too many lost": lambda state, job: setattr(job, "lost_attempts", 5),
    "another digest": lambda state, job: setattr(state, "digest", state.digest + 1),
    "a digest not kept": lambda state, job: setattr(job, "cancel_requested", True),
    "a wrong count": lambda state, job: setattr(state.backlog, "size", 3),
    "a job that waits nowhere": lambda state, job: _bucket(state).live.popitem(),
    "a job that is never served": lambda state, job: _bucket(state).heap.pop(),
    "a heap that is none": lambda state, job: _bucket(state).heap.reverse(),
    "a lease without a clock": lambda state, job: next(iter(state.soft.aged.values())).popitem(),
    "a lease on two clocks": lambda state, job: state.soft.open_lease(0, job.lease.token, job.key),  # type: ignore[union-attr]
    "a sign of life to come": lambda state, job: state.soft.sign_of_life(
        state.partition_of("acme"),
        job.lease.token,  # type: ignore[union-attr]
        job.key,
        10**9,
    ),
    "a start that was not heard": lambda state, job: state.soft.to_start.update({job.key: None}),
}


def test_a_healthy_state_passes() -> None:
    invariants.check(busy()[1])


@pytest.mark.parametrize("wrong", WRONGS)
def test_a_wrong_is_found(wrong: str) -> None:
    _, state, job = busy()
    WRONGS[wrong](state, job)
    with pytest.raises(AssertionError):
        invariants.check(state)


def _replace(job: Job, **values: Any) -> None:
    for name, value in values.items():
        setattr(job, name, value)


def _swap_leases(one: Job, other: Job) -> None:
    one.lease, other.lease = other.lease, one.lease


# ---- the digest, by which a takeover checks what it has loaded


@pytest.mark.parametrize(
    "change",
    [
        lambda one, other: setattr(one, "status", "assigned"),
        lambda one, other: setattr(one, "attempt", one.attempt + 1),
        lambda one, other: setattr(one, "attempt", one.attempt + 8),
        lambda one, other: setattr(one, "lost_attempts", 1),
        lambda one, other: setattr(one, "cancel_requested", True),
        lambda one, other: _replace(one, cancel_requested=True, attempt=1),
        lambda one, other: setattr(one.lease, "token", one.lease.token + 1),
        lambda one, other: _swap_leases(one, other),
    ],
)
def test_states_that_differ_have_different_digests(change: Callable[[Job, Job], Any]) -> None:
    leader = new_cell()
    with_machine(leader)
    one, other = running(leader), running(leader)
    one.attempt = other.attempt = 9
    before = one.fingerprint() + other.fingerprint()
    change(one, other)
    assert one.fingerprint() + other.fingerprint() != before
