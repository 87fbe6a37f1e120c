"""What must hold of the leader's state after every round. Pure; costs a look at everything: for simulations and tests."""

from itertools import pairwise

from jobstream.scheduler.backlog import Bucket
from jobstream.scheduler.evolve import job_shape, open_leases
from jobstream.scheduler.state import DIGEST_MASK, LOST_ATTEMPTS_MAX, Job, JobKey, Machine, State
from jobstream.schemas.envelope import TOKEN_INDEX_BITS
from jobstream.schemas.states import LEASED
from jobstream.topics.catalogue import HEARTBEATS


def check(state: State, *, torn: bool = False) -> None:
    """Raises AssertionError, which names the job, machine, queue or partition that breaks a promise.

    `torn`: the newest round may be, as after a takeover: where what it gave away is visible, what it had freed may not be.
    """
    for key, job in state.jobs.items():
        _job(state, key, job)
    accepted = [job.accepted for job in state.jobs.values()]
    assert len(accepted) == len(set(accepted)), "two jobs arrived at the same place of the same round"
    digest = sum(job.fingerprint() for job in state.jobs.values()) & DIGEST_MASK
    assert state.digest == digest, f"the digest is {state.digest}, and {digest} when it is made afresh"
    _leases(state)
    _fleet(state, torn)
    _backlog(state)
    _clocks(state)


def _job(state: State, key: JobKey, job: Job) -> None:
    name = f"job {job.job_id} of tenant {job.tenant}"
    assert key == job.key, f"{name} is kept as {key}"
    assert job.status in ("queued", *LEASED), f"{name} is live and {job.status}"
    assert (job.lease is not None) == (job.status in LEASED), f"{name} is {job.status} with the lease {job.lease}"
    assert job.lease is not None or not job.cancel_requested, f"{name} is to be cancelled and holds no lease"
    assert 0 <= job.lost_attempts < LOST_ATTEMPTS_MAX, f"{name} has lost {job.lost_attempts} attempts"
    assert job.attempt >= 0, f"{name} is at attempt {job.attempt}"
    assert job.accepted >> TOKEN_INDEX_BITS <= state.round, f"{name} was accepted after round {state.round}"
    assert state.memory.status(job.tenant, job.job_id) is None, f"{name} is live and has ended"
    if (lease := job.lease) is not None:
        assert lease.attempt == job.attempt >= 1, f"{name} is at attempt {job.attempt}, its lease at {lease.attempt}"
        assert lease.started == (job.status == "running"), f"{name} is {job.status}, its lease started: {lease.started}"
        assert job.accepted < lease.token, f"{name} was accepted after its token {lease.token} was made"
        assert lease.token >> TOKEN_INDEX_BITS <= state.round, f"{name}: token {lease.token} after round {state.round}"


def _leases(state: State) -> None:
    leased = open_leases(state)
    tokens = [token for token, _ in leased]
    assert len(tokens) == len(set(tokens)), f"two leases have one token: {tokens}"
    wanted: dict[str, dict[int, JobKey]] = {}
    for token, job in leased:
        assert job.lease is not None
        wanted.setdefault(job.lease.machine_id, {})[token] = job.key
    assert state.leases == wanted, f"leases by machine are {state.leases}; the jobs hold {wanted}"


def _fleet(state: State, torn: bool) -> None:
    fleet = state.fleet
    slots = {machine.slot: machine_id for machine_id, machine in state.machines.items()}
    assert len(slots) == len(state.machines), "two machines share a slot"
    assert slots == {slot: name for slot, name in enumerate(fleet.ids) if name is not None}, "slots do not point back"
    assert sorted(fleet.vacant) == [slot for slot, name in enumerate(fleet.ids) if name is None], "vacant slots differ"
    for machine_id, machine in state.machines.items():
        assert machine_id == machine.machine_id, f"machine {machine.machine_id} is kept as {machine_id}"
        _machine(state, machine, torn)
    taking = {slot for slot, up in enumerate(fleet.up.tolist()) if up}
    assert taking == {machine.slot for machine in state.machines.values() if machine.status == "up"}, (
        "slots that are up"
    )
    lost = {name: machine.lost_at_ms for name, machine in state.machines.items() if machine.status == "lost"}
    assert dict(state.lost) == lost, f"lost machines are listed as {dict(state.lost)} and are {lost}"


def _machine(state: State, machine: Machine, torn: bool) -> None:
    fleet, slot, name = state.fleet, machine.slot, f"machine {machine.machine_id}"
    jobs = [state.jobs[key] for key in state.leases_of(machine.machine_id).values()]
    total = machine.cpu_millis, machine.memory_mib
    used = sum(job.cpu_millis for job in jobs), sum(job.memory_mib for job in jobs)
    free = int(fleet.free_cpu[slot]), int(fleet.free_memory[slot])
    assert (int(fleet.cpu[slot]), int(fleet.memory[slot])) == total, f"{name}: the index has another capacity"
    assert free == (total[0] - used[0], total[1] - used[1]), f"{name}: {free} free of {total} with {used} in use"
    assert free[0] <= total[0] and free[1] <= total[1], f"{name}: {free} free, above its total {total}"
    # A new session may offer less than the leases of older ones hold; but no round gives away what is not there.
    newest = max(state.leases_of(machine.machine_id), default=0)
    if newest >> TOKEN_INDEX_BITS == state.round and not torn:
        assert min(free) >= 0, f"{name}: {free} free, below nothing, and given work in round {state.round}"
    assert int(fleet.clock[slot]) == state.partition_of(machine.machine_id), f"{name} is timed by another partition"
    assert machine.status != "left" or jobs, f"{name} has left, holds nothing, and is still known"


def _backlog(state: State) -> None:
    found: dict[JobKey, Job] = {}
    for level, tenants in enumerate(state.backlog.levels):
        for tenant, queues in tenants.items():
            assert queues, f"tenant {tenant} has no queue at level {level}"
            for queue, buckets in queues.items():
                assert buckets, f"queue {queue} of tenant {tenant} is empty at level {level}"
                for shape, bucket in buckets.items():
                    for key in _bucket(bucket, f"queue {queue} of tenant {tenant}"):
                        job = found[key] = state.jobs[key]
                        place = (job.priority, job.tenant, job.queue, job_shape(job))
                        assert place == (level, tenant, queue, shape), f"job {job.job_id} waits in another place"
                        assert bucket.live[key] == job.accepted, f"job {job.job_id} waits since another time"
    queued = {key: job for key, job in state.jobs.items() if job.status == "queued"}
    assert found == queued, f"the backlog holds {list(found)}; queued are {list(queued)}"
    assert state.backlog.size == len(queued), f"the backlog counts {state.backlog.size}, and holds {len(queued)}"


def _bucket(bucket: Bucket, name: str) -> list[JobKey]:
    assert bucket.live, f"{name} has an empty bucket"
    waiting = {(accepted, key) for key, accepted in bucket.live.items()}
    assert waiting <= set(bucket.heap), f"{name} has jobs that would never be served"
    for at, entry in enumerate(bucket.heap[1:], start=1):
        assert bucket.heap[(at - 1) // 2] <= entry, f"{name} is not in order of arrival"
    return list(bucket.live)


def _clocks(state: State) -> None:
    soft = state.soft
    timed: dict[int, tuple[int, JobKey]] = {}
    for partition, fresh in soft.fresh.items():
        assert list(fresh) == sorted(fresh), f"fresh leases of partition {partition} are not in the order of opening"
        timed |= {token: (partition, key) for token, key in fresh.items()}
    for partition, aged in soft.aged.items():
        twice = timed.keys() & aged.keys()
        assert not twice, f"tokens {sorted(twice)} are both fresh and aged"
        timed |= {token: (partition, key) for token, (_, key) in aged.items()}
        ages = [age for age, _ in aged.values()]
        assert all(one <= other for one, other in pairwise(ages)), f"leases of partition {partition} are not by age"
        assert not ages or ages[-1] <= soft.clock(HEARTBEATS.name, partition).age_ms, f"partition {partition}: future"
    wanted = {token: (state.partition_of(job.tenant), job.key) for token, job in open_leases(state)}
    assert timed == wanted, f"the lease clocks time {timed}; open are {wanted}"
    for key in soft.to_start:
        job = state.jobs.get(key)
        heard = job is not None and job.lease is not None and not job.lease.started and job.lease.seen is not None
        assert heard, f"job {key[1]} of tenant {key[0]} is to be told as started, and was not heard"
