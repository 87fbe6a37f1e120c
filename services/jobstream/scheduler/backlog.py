"""The queued jobs in the order they are served: priority, then tenants in turn, their queues in turn, then first come.

Jobs of one queue that ask for the same are kept together in a bucket: a shape that fits no machine is passed over as
one, however many jobs have it.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LEVELS: Final = 4  # critical, high, normal, low
COMPACT_ABOVE: Final = 64  # entries of a bucket that may be stale however few jobs it holds

JobKey = tuple[str, str]


class Shape(NamedTuple):
    """What a job asks of a machine: millicores, MiB, required labels in sorted order."""

    cpu_millis: int
    memory_mib: int
    required_labels: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Bucket:
    """Jobs of one queue and shape: a heap by arrival. Those that have left stay until they reach the top."""

    heap: list[tuple[int, JobKey]] = field(default_factory=list)
    live: dict[JobKey, int] = field(default_factory=dict)

    def first(self) -> int | None:
        """When the first job here arrived; None when empty."""
        while self.heap and self.live.get(self.heap[0][1]) != self.heap[0][0]:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else None

    def compact(self) -> None:
        """Drop those that have left, once they are most: else they would pile up behind a job that fits nowhere."""
        if len(self.heap) > 2 * len(self.live) + COMPACT_ABOVE:
            self.heap = [(accepted, key) for key, accepted in self.live.items()]
            heapq.heapify(self.heap)


Queue = OrderedDict[Shape, Bucket]
Tenant = OrderedDict[str, Queue]  # in serving order: the queue that was served goes to the back


@dataclass(slots=True)
class Backlog:
    levels: tuple[OrderedDict[str, Tenant], ...] = field(
        default_factory=lambda: tuple(OrderedDict() for _ in range(LEVELS))
    )
    size: int = 0

    def add(self, level: int, tenant: str, queue: str, shape: Shape, accepted: int, key: JobKey) -> None:
        buckets = self.levels[level].setdefault(tenant, OrderedDict()).setdefault(queue, OrderedDict())
        bucket = buckets.get(shape)
        if bucket is None:
            bucket = buckets[shape] = Bucket()
        heapq.heappush(bucket.heap, (accepted, key))
        bucket.live[key] = accepted
        self.size += 1

    def remove(self, level: int, tenant: str, queue: str, shape: Shape, key: JobKey) -> None:
        """Take a job out, and what is empty without it."""
        tenants = self.levels[level]
        queues = tenants[tenant]
        buckets = queues[queue]
        bucket = buckets[shape]
        del bucket.live[key]
        bucket.compact()
        self.size -= 1
        if not bucket.live:
            del buckets[shape]
            if not buckets:
                del queues[queue]
                if not queues:
                    del tenants[tenant]

    def served(self, level: int, tenant: str, queue: str) -> None:
        """A job of this tenant and queue was placed: the others come first now."""
        tenants = self.levels[level]
        if tenant in tenants:
            tenants.move_to_end(tenant)
            if queue in tenants[tenant]:
                tenants[tenant].move_to_end(queue)

    def reset_turns(self) -> None:
        """Whose turn it is is not in the log: a takeover begins anew, in the order of names."""
        for tenants in self.levels:
            for tenant in sorted(tenants):
                tenants.move_to_end(tenant)
                for queue in sorted(tenants[tenant]):
                    tenants[tenant].move_to_end(queue)

    def next_jobs(self, blocked: set[Shape]) -> Iterator[JobKey]:
        """Jobs in serving order. The caller places the job (which takes it out) or adds its shape to `blocked`."""
        for level in self.levels:
            yield from _next_of_level(level, blocked)


def _next_of_level(tenants: OrderedDict[str, Tenant], blocked: set[Shape]) -> Iterator[JobKey]:
    """One pass over a level, in turn. Costs what it serves, plus a look at each tenant, queue and shape."""
    turn = deque((queues, deque(queues)) for queues in tenants.values())
    heads: dict[int, list[tuple[int, Shape]]] = {}  # of the queues seen in this pass: buckets by their first arrival
    while turn:
        queues, names = turn[0]
        while names:
            buckets = queues.get(names[0])
            key = None if buckets is None else _first_of_queue(buckets, heads, blocked)
            if key is not None:
                break
            names.popleft()
        if not names or key is None:
            turn.popleft()
            continue
        shapes = len(blocked)
        yield key
        if len(blocked) > shapes:
            continue  # it fits nowhere: its queue and tenant have not been served, and keep their turn
        names.rotate(-1)
        turn.rotate(-1)


def _first_of_queue(buckets: Queue, heads: dict[int, list[tuple[int, Shape]]], blocked: set[Shape]) -> JobKey | None:
    heap = heads.get(id(buckets))
    if heap is None:
        heap = [(first, shape) for shape, bucket in buckets.items() if (first := bucket.first()) is not None]
        heapq.heapify(heap)
        heads[id(buckets)] = heap
    while heap:
        first, shape = heap[0]
        bucket = buckets.get(shape)
        now_first = None if bucket is None or shape in blocked else bucket.first()
        if bucket is not None and now_first == first:
            return bucket.heap[0][1]
        if now_first is None:
            heapq.heappop(heap)  # nothing left here for this pass
        else:
            heapq.heapreplace(heap, (now_first, shape))
    return None
