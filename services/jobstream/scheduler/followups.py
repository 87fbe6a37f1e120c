"""What follows from facts is decided from the state, until the state says that it is done. Pure: yields facts one by one.

The caller applies each before it asks for the next.
"""

from collections.abc import Iterator
from itertools import islice

from jobstream.scheduler.answers import attempt_lost
from jobstream.scheduler.leases import LeaseTimes
from jobstream.scheduler.state import JobKey, State
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES


def followups(state: State, times: LeaseTimes, most: int) -> Iterator[Message]:
    """Leases and machines that are gone; at most `most` in all, so that a round's index stays within its bits."""
    return islice(_followups(state, times, most), most)


def _followups(state: State, times: LeaseTimes, most: int) -> Iterator[Message]:
    yield from _sessions_gone(state)
    if state.soft.lower(state.soft.barrier):
        yield from _expired_leases(state, times, most)
        if state.soft.machines_ticked:
            yield from _lost_machines(state, times)
            state.soft.machines_ticked = False


def starts(state: State, most: int) -> Iterator[Message]:
    """Attempts that were heard for the first time."""
    for key in list(islice(state.soft.to_start, most)):
        job = state.jobs[key]
        lease = job.lease
        assert lease is not None and lease.seen is not None, f"job {job.job_id} was heard without a lease"
        yield ev.JobStarted(
            tenant=job.tenant,
            job_id=job.job_id,
            attempt=lease.attempt,
            token=lease.token,
            started_at_ms=lease.seen[0],
            seen_at_ms=lease.seen[1],
        )


def _sessions_gone(state: State) -> Iterator[Message]:
    """Leases of a session that its agent proved to be gone with all that it ran: nothing has to be waited for."""
    for machine_id in list(state.soft.ended_sessions):
        machine = state.machines.get(machine_id)
        keys: list[JobKey] = list(state.leases_of(machine_id).values())
        for key in keys:
            job = state.jobs[key]
            if machine is not None and job.lease is not None and job.lease.session == machine.gone_session:
                yield attempt_lost(job, job.lease, "its agent's session has ended", started=job.lease.started)
        del state.soft.ended_sessions[machine_id]


def _expired_leases(state: State, times: LeaseTimes, most: int) -> Iterator[Message]:
    """A lease is expired when a tick has made it too old in `heartbeats`, and `completions` has been read up to a tick
    of that number, so that what finished in time does not run again."""
    for partition in sorted(state.soft.aged):
        clock = state.soft.clock(HEARTBEATS.name, partition)
        reports = state.soft.clock(COMPLETIONS.name, partition)
        if (reports.epoch, reports.number) < (clock.epoch, clock.number):
            continue
        expired = state.soft.expired(partition, clock.age_ms, times.expires_after_ms)
        for key in list(islice(expired, most)):
            job = state.jobs[key]
            assert job.lease is not None, f"job {job.job_id} expired without a lease"
            started = job.lease.started
            detail = f"no sign of life of machine {job.lease.machine_id} for {times.expires_after_ms} ms"
            yield attempt_lost(job, job.lease, detail, started=started)


def _lost_machines(state: State, times: LeaseTimes) -> Iterator[Message]:
    """Machines that hold no lease and have not been present for too long. Looks at every machine: once a tick, not a round."""
    for machine in list(state.machines.values()):
        if machine.status not in ("up", "draining") or state.leases_of(machine.machine_id):
            continue
        clock = state.soft.clock(MACHINES.name, state.partition_of(machine.machine_id))
        if clock.age_ms - int(state.fleet.presence_age[machine.slot]) > times.expires_after_ms:
            yield ev.MachineLost(machine_id=machine.machine_id, session=machine.session)
