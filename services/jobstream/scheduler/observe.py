"""What inputs tell besides facts: signs of life and the leader's own ticks. Changes the soft state alone."""

from collections.abc import Callable
from typing import Any, Final

from jobstream.scheduler.inputs import UNHURRIED, Input
from jobstream.scheduler.state import State
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.topics.catalogue import HEARTBEATS, MACHINES


def observe(state: State, record: Input) -> list[ev.Dispatch]:
    """Take in a heartbeat, presence or tick; the dispatches that answer it (revoke, cancel)."""
    observer = _OBSERVERS.get(type(record.content))
    return [] if observer is None else observer(state, record, record.content)


def is_urgent(state: State, record: Input) -> bool:
    """Whether a record is to be decided on at once. Signs of life that say nothing new wait for the second's round."""
    content = record.content
    if type(content) is not cmd.LeaseHeartbeat:
        return type(content) not in UNHURRIED
    for held in content.leases:
        job = state.jobs.get((content.tenant, held.job_id))
        if job is None or job.lease is None or not job.lease.started or job.cancel_requested:
            return True
    return False


def _tick(state: State, record: Input, tick: cmd.LeaderTick) -> list[ev.Dispatch]:
    if tick.epoch > state.epoch:
        return []  # no leader's: it would stop this clock until that epoch comes
    clock = state.soft.clock(record.topic, record.partition)
    before_ms = clock.age_ms
    if not clock.tick(tick, record.appended_ms):
        return []
    if record.topic == HEARTBEATS.name:
        state.soft.age_fresh(record.partition, tick.round, before_ms)
    elif record.topic == MACHINES.name:
        state.soft.machines_ticked = True
    return []


def _presence(state: State, record: Input, presence: cmd.MachinePresent) -> list[ev.Dispatch]:
    machine = state.machines.get(presence.machine_id)
    if machine is None or machine.session != presence.session or presence.number <= machine.presence:
        return []
    partition = state.partition_of(machine.machine_id)
    machine.presence = presence.number
    state.fleet.heard[machine.slot] = True
    state.fleet.presence_age[machine.slot] = state.soft.clock(MACHINES.name, partition).age_ms
    return []


def _heartbeat(state: State, record: Input, heartbeat: cmd.LeaseHeartbeat) -> list[ev.Dispatch]:
    answers: list[ev.Dispatch] = []
    partition = state.partition_of(heartbeat.tenant)
    age_ms = state.soft.clock(record.topic, partition).age_ms
    for held in heartbeat.leases:
        job = state.jobs.get((heartbeat.tenant, held.job_id))
        lease = job.lease if job is not None else None
        if (
            job is None
            or lease is None
            or lease.token != held.token
            or lease.machine_id != heartbeat.machine_id
            or lease.session != heartbeat.session
        ):
            answers.append(_revoke(heartbeat, held))
            continue
        state.soft.sign_of_life(partition, lease.token, job.key, age_ms)
        if not lease.started and lease.seen is None:
            lease.seen = (held.started_at_ms, record.appended_ms)
            state.soft.to_start[job.key] = None
        if job.cancel_requested:
            answers.append(
                ev.CancelAttempt(
                    machine_id=lease.machine_id,
                    session=lease.session,
                    tenant=job.tenant,
                    job_id=job.job_id,
                    attempt=lease.attempt,
                    token=lease.token,
                )
            )
    return answers


def _revoke(heartbeat: cmd.LeaseHeartbeat, held: cmd.HeldLease) -> ev.RevokeAttempt:
    return ev.RevokeAttempt(
        machine_id=heartbeat.machine_id,
        session=heartbeat.session,
        tenant=heartbeat.tenant,
        job_id=held.job_id,
        attempt=1,  # unknown here: the token tells
        token=held.token,
    )


_OBSERVERS: Final[dict[type, Callable[[State, Input, Any], list[ev.Dispatch]]]] = {
    cmd.LeaderTick: _tick,
    cmd.LeaseHeartbeat: _heartbeat,
    cmd.MachinePresent: _presence,
}
