"""Which queued job goes to which machine. Pure: yields assignments one by one; the caller applies each at once."""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from jobstream.scheduler.backlog import Shape
from jobstream.scheduler.evolve import job_shape
from jobstream.scheduler.fleet import WINDOW, Booleans, choose, has_room, usable
from jobstream.scheduler.leases import LeaseTimes
from jobstream.scheduler.state import State
from jobstream.schemas import events as ev
from jobstream.schemas.envelope import fencing_token
from jobstream.topics.catalogue import MACHINES

LABEL_MASKS_MAX: Final = 1_000  # distinct sets of required labels that are kept: 10 MB over 10,000 machines
ROTATION: Final = 7_919  # a prime: successive rounds begin their search far apart


def place(
    state: State, times: LeaseTimes, round_number: int, next_index: Callable[[], int], most: int
) -> Iterator[ev.JobAssigned]:
    """Assign jobs in serving order until none fits or `most` are placed. `next_index` is the index of the next fact.

    A shape that finds no machine is not tried again in this round, however many jobs have it.
    """
    if not state.backlog.size or not state.machines:
        return
    ages = np.zeros(state.partitions, np.int64)
    for partition in range(state.partitions):
        ages[partition] = state.soft.clock(MACHINES.name, partition).age_ms
    usable_now = usable(state.fleet, ages, times.presence_age_max_ms)
    if not usable_now.any():
        return
    blocked: set[Shape] = set()
    last: dict[Shape, int] = {}
    window = round_number * ROTATION % -(-len(state.fleet.ids) // WINDOW)
    placed = 0
    for key in state.backlog.next_jobs(blocked):
        job = state.jobs[key]
        shape = job_shape(job)
        # Where the last job of this shape went is now an even tighter fit, while it has room.
        slot = last.get(shape)
        if slot is None or not has_room(state.fleet, slot, shape):
            slot = choose(state.fleet, usable_now, _allowed(state, shape), shape, window)
            if slot is None:
                blocked.add(shape)
                continue
            window, last[shape] = slot // WINDOW, slot
        machine_id = state.fleet.ids[slot]
        assert machine_id is not None, f"slot {slot} of the fleet has room but no machine"
        machine = state.machines[machine_id]
        yield ev.JobAssigned(
            tenant=job.tenant,
            job_id=job.job_id,
            attempt=job.attempt + 1,
            token=fencing_token(round_number, next_index()),
            machine_id=machine_id,
            session=machine.session,
            presence=machine.presence,
        )
        placed += 1
        if placed == most:
            return


def _allowed(state: State, shape: Shape) -> Booleans | None:
    """Which slots have the labels that the shape requires; None: none are required. Kept until a machine changes."""
    if not shape.required_labels:
        return None
    masks = state.fleet.label_masks
    mask = masks.get(shape.required_labels)
    if mask is None:
        if len(masks) >= LABEL_MASKS_MAX:
            masks.clear()
        mask = np.zeros(len(state.fleet.free_cpu), np.bool_)
        for machine in state.machines.values():
            if all(machine.labels.get(name) == value for name, value in shape.required_labels):
                mask[machine.slot] = True
        masks[shape.required_labels] = mask
    return mask
