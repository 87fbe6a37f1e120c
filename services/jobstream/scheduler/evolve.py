"""The one place where state changes: live, in a standby, at takeover and in replay.

Facts of different log partitions may come in any order (a snapshot of the projection is not cut at a round), so
leases are counted by machine whether it is known or not.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from jobstream.scheduler.backlog import Shape
from jobstream.scheduler.fleet import FleetIndex
from jobstream.scheduler.memory import WINDOW_MS
from jobstream.scheduler.state import DIGEST_MASK, Job, Labels, Lease, Machine, State
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import encode
from jobstream.schemas.envelope import Stamp, fencing_token
from jobstream.schemas.states import PRIORITIES, JobStatus
from jobstream.topics.catalogue import MACHINES

_LEVEL: Final = {name: level for level, name in enumerate(PRIORITIES)}


class LogContradicts(AssertionError):
    """A fact that cannot follow from the facts before it: a broken promise of our own."""


def evolve(state: State, event: Message, stamp: Stamp) -> None:
    """Apply one fact of `lifecycle` or `fleet`; raises LogContradicts."""
    state.round = max(state.round, stamp.round)
    state.epoch = max(state.epoch, stamp.epoch)
    state.now_ms = max(state.now_ms, stamp.at_ms)  # its round's record may never be visible: time does not go back
    handler = HANDLERS.get(type(event))
    if handler is None:
        raise LogContradicts(f"{event.TYPE} has no place in the log")
    handler(state, event, stamp)


def evolve_round(state: State, record: ev.RoundCommitted) -> None:
    """Apply a whole round's record: the positions of the inputs, time, and what need not be known any more."""
    state.round = max(state.round, record.round)
    state.epoch = max(state.epoch, record.epoch)
    state.now_ms = max(state.now_ms, record.now_ms)
    positions = state.positions
    for topic, partitions in (record.positions or {}).items():
        for partition, offset in partitions.items():
            positions[topic, partition] = offset  # the last word, also where a torn round had gone further
    if record.positions is not None:
        state.answered = frozenset(
            f"{topic}/{partition}/{offset}"
            for topic, partitions in record.answered.items()
            for partition, offsets in partitions.items()
            for offset in offsets
        )
    for topic, ranges in record.inputs.items():
        for partition, (_, after) in ranges.items():  # signs of life are read again at a takeover: never step back
            positions[topic, partition] = max(after, positions.get((topic, partition), 0))
    _forget_lost(state)
    state.memory.forget(record.forget_before_ms)


# ---- jobs


def job_shape(job: Job) -> Shape:
    return Shape(job.cpu_millis, job.memory_mib, job.required_labels)


def sorted_labels(labels: Any) -> Labels:
    return tuple(sorted(labels.items()))


def add_job(state: State, job: Job) -> None:
    """Take up a job as it stands: accepted just now, or loaded."""
    if job.key in state.jobs:
        raise LogContradicts(f"job {job.job_id} of tenant {job.tenant} is accepted twice")
    state.jobs[job.key] = job
    if job.status == "queued":
        _enqueue(state, job)
    if job.lease is not None:
        _hold(state, job, job.lease)
    _count(state, job)


def _accepted(state: State, event: ev.JobAccepted, stamp: Stamp) -> None:
    spec = event.spec
    add_job(
        state,
        Job(
            tenant=event.tenant,
            job_id=event.job_id,
            queue=spec.queue,
            priority=_LEVEL[spec.priority],
            cpu_millis=spec.resources.cpu_millis,
            memory_mib=spec.resources.memory_mib,
            required_labels=sorted_labels(spec.required_labels),
            digest=event.digest,
            spec_json=encode(spec),
            accepted=fencing_token(stamp.round, stamp.index),
        ),
    )


def _assigned(state: State, event: ev.JobAssigned, stamp: Stamp) -> None:
    job = _job(state, event)
    if job.lease is not None or job.status != "queued":
        raise LogContradicts(f"job {job.job_id} is assigned while it is {job.status}")
    _dequeue(state, job)
    state.backlog.served(job.priority, job.tenant, job.queue)
    lease = Lease(
        token=event.token,
        attempt=event.attempt,
        machine_id=event.machine_id,
        session=event.session,
        presence=event.presence,
    )
    job.status, job.attempt, job.lease = "assigned", event.attempt, lease
    _count(state, job)
    _hold(state, job, lease)


def _started(state: State, event: ev.JobStarted, stamp: Stamp) -> None:
    job = _job(state, event)
    lease = _lease(job, event.token)
    job.status, lease.started = "running", True
    _count(state, job)
    state.soft.to_start.pop(job.key, None)


def _cancel_requested(state: State, event: ev.CancelRequested, stamp: Stamp) -> None:
    job = _job(state, event)
    job.cancel_requested = True
    _count(state, job)


def _assignment_refused(state: State, event: ev.AssignmentRefused, stamp: Stamp) -> None:
    job = _job(state, event)
    _suspect(state, event.machine_id)
    _release(state, job, _lease(job, event.token))
    job.status, job.attempt = "queued", job.attempt - 1
    _count(state, job)
    _enqueue(state, job)


def _lost(state: State, event: ev.AttemptLost, stamp: Stamp) -> None:
    job = _job(state, event)
    if not event.started:
        _suspect(state, event.machine_id)
    _release(state, job, _lease(job, event.token))
    job.status = "queued"
    job.lost_attempts += event.started
    _count(state, job)
    _enqueue(state, job)


def _ended(status: JobStatus) -> Callable[[State, Any, Stamp], None]:
    def apply(state: State, event: ev.JobCompleted | ev.JobFailed | ev.JobCancelled, stamp: Stamp) -> None:
        job = _job(state, event)
        if job.lease is not None:
            _release(state, job, job.lease)
        elif job.status == "queued":
            _dequeue(state, job)
        state.digest = state.digest - job.counted & DIGEST_MASK
        del state.jobs[job.key]
        state.memory.add(job.tenant, job.job_id, status, job.digest, stamp.at_ms)

    return apply


def _job(state: State, event: ev.JobEvent) -> Job:
    job = state.jobs.get((event.tenant, event.job_id))
    if job is None:
        raise LogContradicts(f"{event.TYPE} names job {event.job_id} of tenant {event.tenant}, which is not live")
    return job


def _lease(job: Job, token: int) -> Lease:
    if job.lease is None or job.lease.token != token:
        raise LogContradicts(f"job {job.job_id} has no lease with the token {token}")
    return job.lease


def _count(state: State, job: Job) -> None:
    """Keep the digest right after a change of one job."""
    share = job.fingerprint()
    state.digest = state.digest + share - job.counted & DIGEST_MASK
    job.counted = share


def _enqueue(state: State, job: Job) -> None:
    state.backlog.add(job.priority, job.tenant, job.queue, job_shape(job), job.accepted, job.key)


def _dequeue(state: State, job: Job) -> None:
    state.backlog.remove(job.priority, job.tenant, job.queue, job_shape(job), job.key)


# ---- leases and the resources they hold


def _hold(state: State, job: Job, lease: Lease) -> None:
    state.leases.setdefault(lease.machine_id, {})[lease.token] = job.key
    if (machine := state.machines.get(lease.machine_id)) is not None:
        state.fleet.take(machine.slot, job.cpu_millis, job.memory_mib)
    state.soft.open_lease(state.partition_of(job.tenant), lease.token, job.key)


def recount(state: State) -> None:
    """Count afresh what every machine has free, from the open leases: facts may have come in another order.

    Slots and orders follow ids, times and tokens, and machines that have left are dropped (with leases that are still
    open or without), so that what is decided does not depend on how the state came about.
    """
    state.leases = {}
    for token, job in open_leases(state):
        assert job.lease is not None
        state.leases.setdefault(job.lease.machine_id, {})[token] = job.key
    state.machines = {name: machine for name, machine in sorted(state.machines.items()) if machine.status != "left"}
    state.lost = OrderedDict(sorted(state.lost.items(), key=lambda item: (item[1], item[0])))
    state.fleet = FleetIndex()
    for machine_id, machine in state.machines.items():
        machine.slot = state.fleet.add(machine_id, state.partition_of(machine_id))
        _set_capacity(state, machine)
    _forget_lost(state)


def open_leases(state: State) -> list[tuple[int, Job]]:
    """(token, job) of every open lease, in the order in which they were opened."""
    leased = [(job.lease.token, job) for job in state.jobs.values() if job.lease is not None]
    return sorted(leased, key=lambda pair: pair[0])


def _release(state: State, job: Job, lease: Lease) -> None:
    """Close the lease. The caller changes the job's status, and counts it."""
    job.lease = None
    held = state.leases[lease.machine_id]
    del held[lease.token]
    if not held:
        del state.leases[lease.machine_id]
    if (machine := state.machines.get(lease.machine_id)) is not None:
        state.fleet.give_back(machine.slot, job.cpu_millis, job.memory_mib)
        if not held and machine.status == "left":
            remove_machine(state, machine)
    state.soft.close_lease(state.partition_of(job.tenant), lease.token, job.key)


def _suspect(state: State, machine_id: str) -> None:
    """No work for this machine until it is heard again: else a job would go to and fro between here and there."""
    if (machine := state.machines.get(machine_id)) is not None:
        state.fleet.heard[machine.slot] = False


# ---- machines


def add_machine(state: State, machine: Machine) -> None:
    """Take up a machine or its new session; `slot` is set here. Leases of older sessions go on holding resources."""
    old = state.machines.get(machine.machine_id)
    if old is not None:
        machine.slot = old.slot
        state.fleet.heard[machine.slot] = False
        state.lost.pop(machine.machine_id, None)
    else:
        machine.slot = state.fleet.add(machine.machine_id, state.partition_of(machine.machine_id))
    clock = state.soft.clock(MACHINES.name, state.partition_of(machine.machine_id))
    state.fleet.presence_age[machine.slot] = clock.age_ms  # as old as its admission, not as its partition's clock
    state.machines[machine.machine_id] = machine
    _set_capacity(state, machine)
    if machine.status == "lost":
        state.lost[machine.machine_id] = machine.lost_at_ms


def remove_machine(state: State, machine: Machine) -> None:
    state.fleet.remove(machine.slot)
    del state.machines[machine.machine_id]
    state.lost.pop(machine.machine_id, None)


def _forget_lost(state: State) -> None:
    while state.lost and next(iter(state.lost.values())) <= state.now_ms - WINDOW_MS:
        machine_id = next(iter(state.lost))
        if state.leases_of(machine_id):
            state.lost.move_to_end(machine_id)  # its leases ended long ago, but these facts are still to be read
            break
        remove_machine(state, state.machines[machine_id])


def _set_capacity(state: State, machine: Machine) -> None:
    used = [state.jobs[key] for key in state.leases_of(machine.machine_id).values()]
    used_cpu, used_memory = sum(job.cpu_millis for job in used), sum(job.memory_mib for job in used)
    state.fleet.set_capacity(machine.slot, machine.cpu_millis, machine.memory_mib, used_cpu, used_memory)
    state.fleet.up[machine.slot] = machine.status == "up"


def _admitted(state: State, event: ev.MachineAdmitted, stamp: Stamp) -> None:
    old = state.machines.get(event.machine_id)
    machine = Machine(
        machine_id=event.machine_id,
        session=event.session,
        boot_id=event.boot_id,
        cpu_millis=event.resources.cpu_millis,
        memory_mib=event.resources.memory_mib,
        labels=dict(event.labels),
        status="up",
        gone_session=old.session if old is not None and event.previous_session_gone else None,
    )
    add_machine(state, machine)
    if machine.gone_session is not None and state.leases_of(machine.machine_id):
        state.soft.ended_sessions[machine.machine_id] = None


def _draining(state: State, event: ev.MachineDraining, stamp: Stamp) -> None:
    if (machine := _machine(state, event)) is not None:
        machine.status = "draining"
        state.fleet.up[machine.slot] = False


def _left(state: State, event: ev.MachineLeft, stamp: Stamp) -> None:
    if (machine := _machine(state, event)) is not None:
        machine.status, machine.gone_session = "left", machine.session
        state.fleet.up[machine.slot] = False
        if state.leases_of(machine.machine_id):
            state.soft.ended_sessions[machine.machine_id] = None
        else:
            remove_machine(state, machine)


def _machine_lost(state: State, event: ev.MachineLost, stamp: Stamp) -> None:
    """The machine stays known for a while: when it is heard again in the same session it is admitted again."""
    if (machine := _machine(state, event)) is not None:
        machine.status, machine.lost_at_ms = "lost", stamp.at_ms
        state.fleet.up[machine.slot] = state.fleet.heard[machine.slot] = False
        state.lost[machine.machine_id] = stamp.at_ms


def _machine(state: State, event: ev.MachineEvent) -> Machine | None:
    machine = state.machines.get(event.machine_id)
    return machine if machine is not None and machine.session == event.session else None


def _nothing(state: State, event: Message, stamp: Stamp) -> None:
    """An answer that changes nothing but is on record."""


HANDLERS: Final[dict[type[Message], Callable[[State, Any, Stamp], None]]] = {
    ev.JobAccepted: _accepted,
    ev.JobRefused: _nothing,
    ev.SubmissionRepeated: _nothing,
    ev.CancelRequested: _cancel_requested,
    ev.CancelIgnored: _nothing,
    ev.JobAssigned: _assigned,
    ev.JobStarted: _started,
    ev.AssignmentRefused: _assignment_refused,
    ev.AttemptLost: _lost,
    ev.ReportIgnored: _nothing,
    ev.JobCompleted: _ended("completed"),
    ev.JobFailed: _ended("failed"),
    ev.JobCancelled: _ended("cancelled"),
    ev.MachineAdmitted: _admitted,
    ev.MachineDraining: _draining,
    ev.MachineLeft: _left,
    ev.MachineLost: _machine_lost,
    ev.MachineReportIgnored: _nothing,
}
