"""The fleet as arrays: which machine takes a shape, first fit with a score over windows from a rotating start.

Measured on 10,000 machines: numpy over all of them 3,000 placements/s, in windows of 256 21,000.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jobstream.scheduler.backlog import Shape

WINDOW: Final = 256  # machines that are scored for one placement
SCORE_SCALE: Final = 1_000  # scores are whole numbers: thousandths of a machine left over

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(slots=True)
class FleetIndex:
    """Machines by slot. Slots of machines that are gone are used again; a vacant slot is never up."""

    ids: list[str | None] = field(default_factory=list)
    vacant: list[int] = field(default_factory=list)
    free_cpu: Integers = field(default_factory=lambda: np.zeros(WINDOW, np.int64))
    free_memory: Integers = field(default_factory=lambda: np.zeros(WINDOW, np.int64))
    cpu: Integers = field(default_factory=lambda: np.ones(WINDOW, np.int64))
    memory: Integers = field(default_factory=lambda: np.ones(WINDOW, np.int64))
    up: Booleans = field(default_factory=lambda: np.zeros(WINDOW, np.bool_))  # takes new work, as the log says
    heard: Booleans = field(default_factory=lambda: np.zeros(WINDOW, np.bool_))  # soft: present and not suspect
    presence_age: Integers = field(default_factory=lambda: np.zeros(WINDOW, np.int64))  # clock age at the last presence
    clock: Integers = field(default_factory=lambda: np.zeros(WINDOW, np.int64))  # partition of `machines`
    label_masks: dict[tuple[tuple[str, str], ...], Booleans] = field(default_factory=dict)

    def add(self, machine_id: str, partition: int) -> int:
        """A slot for a machine."""
        if self.vacant:
            slot = self.vacant.pop()
            self.ids[slot] = machine_id
        else:
            slot = len(self.ids)
            self.ids.append(machine_id)
            if slot >= len(self.free_cpu):
                self._grow()
        self.clock[slot] = partition
        self.heard[slot] = False
        return slot

    def set_capacity(self, slot: int, cpu_millis: int, memory_mib: int, used_cpu: int, used_memory: int) -> None:
        self.cpu[slot], self.memory[slot] = cpu_millis, memory_mib
        self.free_cpu[slot], self.free_memory[slot] = cpu_millis - used_cpu, memory_mib - used_memory
        self.label_masks.clear()  # labels may have changed with the registration

    def remove(self, slot: int) -> None:
        self.ids[slot] = None
        self.up[slot] = self.heard[slot] = False
        self.free_cpu[slot] = self.free_memory[slot] = 0
        self.vacant.append(slot)
        self.label_masks.clear()

    def take(self, slot: int, cpu_millis: int, memory_mib: int) -> None:
        self.free_cpu[slot] -= cpu_millis
        self.free_memory[slot] -= memory_mib

    def give_back(self, slot: int, cpu_millis: int, memory_mib: int) -> None:
        self.free_cpu[slot] += cpu_millis
        self.free_memory[slot] += memory_mib

    def _grow(self) -> None:
        for name in ("free_cpu", "free_memory", "cpu", "memory", "up", "heard", "presence_age", "clock"):
            array: npt.NDArray[Any] = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.cpu[self.cpu == 0] = self.memory[self.memory == 0] = 1  # divisors of scores


def usable(fleet: FleetIndex, clock_ages: Integers, presence_age_max_ms: int) -> Booleans:
    """Machines that may be given work: up, and heard not long ago. `clock_ages` by partition of `machines`."""
    age = clock_ages[fleet.clock] - fleet.presence_age
    return np.asarray(fleet.up & fleet.heard & (age <= presence_age_max_ms))


def has_room(fleet: FleetIndex, slot: int, shape: Shape) -> bool:
    return bool(fleet.free_cpu[slot] >= shape.cpu_millis and fleet.free_memory[slot] >= shape.memory_mib)


def choose(fleet: FleetIndex, usable_now: Booleans, allowed: Booleans | None, shape: Shape, window: int) -> int | None:
    """The slot that takes the shape with the least left over, from this window or else the next that has any.

    None: no machine. Ties go to the lowest slot. A full look at 10,000 machines costs 30 µs, a window 10.
    """
    slot = _best_in(fleet, usable_now, allowed, shape, window * WINDOW)
    if slot is not None:
        return slot
    fits = usable_now & (fleet.free_cpu >= shape.cpu_millis) & (fleet.free_memory >= shape.memory_mib)
    if allowed is not None:
        fits &= allowed
    candidates = np.flatnonzero(fits)
    if candidates.size == 0:
        return None
    at = int(np.searchsorted(candidates, (window + 1) * WINDOW)) % candidates.size
    return _best_in(fleet, usable_now, allowed, shape, int(candidates[at]) // WINDOW * WINDOW)


def _best_in(fleet: FleetIndex, usable_now: Booleans, allowed: Booleans | None, shape: Shape, low: int) -> int | None:
    window = slice(low, low + WINDOW)
    left_cpu = fleet.free_cpu[window] - shape.cpu_millis
    left_memory = fleet.free_memory[window] - shape.memory_mib
    fits = usable_now[window] & (left_cpu >= 0) & (left_memory >= 0)
    if allowed is not None:
        fits &= allowed[window]
    candidates = np.flatnonzero(fits)
    if candidates.size == 0:
        return None
    left = (
        left_cpu[candidates] * SCORE_SCALE // fleet.cpu[window][candidates]
        + left_memory[candidates] * SCORE_SCALE // fleet.memory[window][candidates]
    )
    return low + int(candidates[np.argmin(left)])
