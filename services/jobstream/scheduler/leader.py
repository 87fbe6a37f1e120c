"""Lead a cell: take over, then round after round, until another leads, the process stops, or a transaction fails."""

import gc
import logging
import threading
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from jobstream.runtime.clock import monotonic_ms
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import LeadershipLost, LogBroken
from jobstream.runtime.faults import fault_point
from jobstream.runtime.kafka import make_consumer, offsets_at, partitions_of
from jobstream.scheduler.election import Election
from jobstream.scheduler.inbox import Inbox
from jobstream.scheduler.inputs import Input, base_topic
from jobstream.scheduler.journal import Doubtful, Journal
from jobstream.scheduler.leases import LeaseTimes
from jobstream.scheduler.loading import Projected
from jobstream.scheduler.log_follower import LogFollower
from jobstream.scheduler.observe import is_urgent
from jobstream.scheduler.rounds import (
    CORE_VERSION,
    ROUND_INPUTS_MAX,
    DispatchRecord,
    Round,
    Rules,
    Suspects,
    lease_dispatch,
    run_round,
)
from jobstream.scheduler.state import PartitionKey, State
from jobstream.scheduler.takeover import raise_barrier, resume_after, take_over
from jobstream.schemas import events as ev
from jobstream.schemas.commands import LeaderTick
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES, SUBMISSIONS, upstream

log = logging.getLogger(__name__)

IDLE_ROUND_MS: Final = 1_000
REREAD_SLACK_MS: Final = 60_000  # signs of life are read again from this long before a lease could have expired


@dataclass(slots=True)
class Term:
    """What outlives one epoch of this process: the state while it can be trusted, and who broke a round."""

    state: State | None = None
    known: dict[PartitionKey, Projected] = field(default_factory=dict)  # how far `state` is in the log
    suspects: Suspects = field(default_factory=Suspects)
    led_before: bool = False  # a new epoch of the same leader is no failover


class Leader:
    """One epoch. `lead` returns when the process is to stop; every other end is an exception, after which the state
    is thrown away, or Doubtful, after which it is kept for a new epoch."""

    def __init__(self, settings: Settings, election: Election, follower: LogFollower, term: Term) -> None:
        self._settings = settings
        self._election = election
        self._follower = follower
        self._term = term
        self._rules = Rules(
            cell=settings.cell,
            lease=LeaseTimes(
                ttl_ms=settings.lease.ttl_ms, margin_ms=settings.lease.margin_ms, grace_ms=settings.lease.grace_ms
            ),
            grants={name: frozenset(tenants) for name, tenants in settings.producers.items()},
        )
        self._state = follower.state
        self._journal = Journal(settings)
        self._anchor = (0, 0)  # broker's time of the last own round, and the monotonic time of then
        self._answered: frozenset[str] = frozenset()
        self._log_ends: dict[PartitionKey, int] = {}
        self._tick_number = 0
        self._last_tick_ms = 0

    def lead(self, stop: threading.Event) -> None:
        try:
            starts, epoch_start = self._take_over()
            with Inbox(self._settings, starts) as inbox:
                self._state.epoch += 1
                self._run([], epoch_start)
                fault_point("leader.after_takeover")
                log.info("leads since round %d of epoch %d", self._state.round, self._state.epoch)
                self._journal.dispatch(self._unheard())
                self._rounds(inbox, stop)
        finally:
            self._journal.close()

    # ---- taking over

    def _take_over(self) -> tuple[dict[PartitionKey, int], ev.EpochStart]:
        fault_point("leader.before_init")
        self._journal.init()
        fault_point("leader.after_init")
        self._check_ownership()
        ends = self._follower.ends()
        self._follower.read_to(ends, self._check_ownership)
        if self._term.state is not None and self._follower.applied:
            raise LeadershipLost("another leader has written since: the state is read afresh")
        self._log_ends = self._follower.short_offsets(ends)
        self._check_digest()
        self._answered = resume_after(self._state, self._follower.tail)
        take_over(self._state)
        gc.freeze()  # a million jobs are not looked through for garbage again
        starts, gaps = self._starts()
        self._anchor = (self._state.now_ms, monotonic_ms())
        raise_barrier(self._state, self._submission_ends())
        self._state.soft.read.update(starts)
        sequences: dict[str, dict[int, int]] = {}
        for (topic, partition), sequence in self._state.next_sequence.items():
            sequences.setdefault(topic, {})[partition] = sequence
        lease = self._settings.lease
        return starts, ev.EpochStart(
            configuration={
                "lease_ttl_ms": lease.ttl_ms,
                "lease_margin_ms": lease.margin_ms,
                "lease_grace_ms": lease.grace_ms,
                "tenant_partitions": self._settings.tenant_partitions,
            },
            failover=not self._term.led_before,
            log_sequences=sequences,
            gaps=gaps,
        )

    def _check_digest(self) -> None:
        """The newest whole round says what the state must be."""
        tail = self._follower.tail
        if tail.last is None or tail.last.round != self._state.round:
            return  # kept from the epoch before, or a torn round follows, which no record describes
        if not tail.last_is_whole(self._state.next_sequence):
            return
        if tail.last.core_version == CORE_VERSION and tail.last.digest != self._state.digest:
            raise LogBroken(
                f"after round {tail.last.round} the state's digest is {self._state.digest}, not {tail.last.digest} as "
                "the leader of then wrote: the projection or this program differs from the log; rebuild the projection"
            )

    def _starts(self) -> tuple[dict[PartitionKey, int], dict[str, dict[int, tuple[int, int]]]]:
        """Where each input partition is read from: after the last round, signs of life from before what could expire."""
        settings, state = self._settings, self._state
        lease = settings.lease
        since_ms = state.now_ms - lease.ttl_ms - lease.grace_ms - REREAD_SLACK_MS
        names = [SUBMISSIONS.name, COMPLETIONS.name, HEARTBEATS.name, MACHINES.name]
        names += [upstream(producer).name for producer in sorted(settings.producers)]
        consumer = make_consumer(settings, group=f"{settings.topic_prefix}inbox", committed=False)
        try:
            counts = partitions_of(consumer, [settings.topic_prefix + name for name in names])
            places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
            begins = offsets_at(consumer, places, OFFSET_BEGINNING)
            signs = [p for p in places if p[0].removeprefix(settings.topic_prefix) in (HEARTBEATS.name, MACHINES.name)]
            again = offsets_at(consumer, signs, max(0, since_ms)) if since_ms > 0 else {p: begins[p] for p in signs}
        finally:
            consumer.close()
        starts: dict[PartitionKey, int] = {}
        gaps: dict[str, dict[int, tuple[int, int]]] = {}
        for place, begin in begins.items():
            short = (place[0].removeprefix(settings.topic_prefix), place[1])
            wanted = state.positions.setdefault(short, begin)
            if wanted < begin:
                log.error("%s/%d: the inputs from %d to %d are gone", *place, wanted, begin)
                gaps.setdefault(short[0], {})[short[1]] = (wanted, begin)
            starts[short] = max(begin, min(wanted, again.get(place, wanted)))
            state.positions[short] = max(wanted, begin)
        return starts, gaps

    def _submission_ends(self) -> dict[PartitionKey, int]:
        """The present ends of the submissions' inboxes: until they have been read, no ended job is forgotten."""
        prefix = self._settings.topic_prefix
        consumer = make_consumer(self._settings, group=f"{prefix}inbox", committed=True)
        try:
            places = [(prefix + topic, partition) for topic, partition in self._state.positions]
            inboxes = [place for place in places if base_topic(place[0].removeprefix(prefix)) == SUBMISSIONS.name]
            ends = offsets_at(consumer, inboxes, OFFSET_END)
        finally:
            consumer.close()
        return {(topic.removeprefix(prefix), partition): end for (topic, partition), end in ends.items()}

    def _unheard(self) -> list[DispatchRecord]:
        """Dispatches of leases that show no sign of life: the last leader may have ended before it sent them."""
        jobs = [job for job in self._state.jobs.values() if job.lease is not None]
        unheard = [job for job in jobs if job.cancel_requested or (job.lease is not None and not job.lease.started)]
        return [dispatch for job in unheard if (dispatch := lease_dispatch(job)) is not None]

    # ---- rounds

    def _rounds(self, inbox: Inbox, stop: threading.Event) -> None:
        pending: list[Input] = []
        more = False
        last_round_ms = monotonic_ms()
        while not stop.is_set():
            self._check_ownership()
            self._tick_when_due()
            wait_ms = min(
                last_round_ms + IDLE_ROUND_MS - monotonic_ms(),
                self._last_tick_ms + self._settings.lease.tick_ms - monotonic_ms(),
            )
            taken = inbox.take(0 if more else max(0, wait_ms) / 1000, ROUND_INPUTS_MAX)
            pending += taken
            due = more or monotonic_ms() - last_round_ms >= IDLE_ROUND_MS or len(pending) >= ROUND_INPUTS_MAX
            if not due and not any(is_urgent(self._state, record) for record in taken):
                continue
            made = self._run(pending, None)
            more, pending, last_round_ms = made.more, [], monotonic_ms()
            self._journal.dispatch(made.dispatches)
            fault_point("leader.after_dispatch")

    def _run(self, inputs: list[Input], epoch_start: ev.EpochStart | None) -> Round:
        fault_point("leader.before_round")
        made = run_round(
            self._state,
            inputs,
            self._now_ms(),
            self._rules,
            suspects=self._term.suspects,
            answered=self._answered,
            epoch_start=epoch_start,
        )
        fault_point("leader.after_decide")
        try:
            appended_ms = self._journal.commit(made)
        except Doubtful:
            self._term.state = self._state
            offsets = {**self._log_ends, **self._journal.offsets}
            self._term.known = {
                place: Projected(next_offset=offset, round_offset=offset) for place, offset in offsets.items()
            }
            self._journal.dispatch(made.dispatches)
            raise
        self._anchor = (appended_ms, monotonic_ms())
        return made

    def _now_ms(self) -> int:
        """The broker's clock, as of the last own round, plus the monotonic time since."""
        at_ms, then_ms = self._anchor
        return at_ms + monotonic_ms() - then_ms

    def _tick_when_due(self) -> None:
        now_ms = monotonic_ms()
        if self._last_tick_ms and now_ms - self._last_tick_ms < self._settings.lease.tick_ms:
            return
        elapsed_ms = now_ms - self._last_tick_ms if self._last_tick_ms else 0
        self._last_tick_ms = now_ms
        self._tick_number += 1
        self._journal.tick(
            LeaderTick(
                epoch=self._state.epoch, number=self._tick_number, round=self._state.round, elapsed_ms=elapsed_ms
            )
        )

    def _check_ownership(self) -> None:
        if not self._election.poll():
            raise LeadershipLost("the cell is owned by another process, or by none")
