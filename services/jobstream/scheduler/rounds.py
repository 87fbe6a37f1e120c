"""One pass of the leader, pure: state, inputs and `now` in; numbered facts, dispatches, dead letters and a record out.

Facts change the state as they are made, through `evolve`, so that what is decided next knows them. When the round's
transaction fails the state is worth nothing and is thrown away.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from jobstream.scheduler.answers import Answer, Grants, answer
from jobstream.scheduler.evolve import evolve, evolve_round
from jobstream.scheduler.followups import followups, starts
from jobstream.scheduler.inputs import TOPIC_ORDER, Fault, Input, base_topic, split_cause
from jobstream.scheduler.leases import LeaseTimes
from jobstream.scheduler.memory import WINDOW_MS
from jobstream.scheduler.observe import observe
from jobstream.scheduler.placement import place
from jobstream.scheduler.state import Job, PartitionKey, State
from jobstream.schemas import events as ev
from jobstream.schemas.base import Message
from jobstream.schemas.codec import VALUE_BYTES_MAX, encode, encode_with_spec
from jobstream.schemas.envelope import CAUSE_STATE, TOKEN_INDEX_BITS, Stamp
from jobstream.topics.catalogue import COMPLETIONS, FLEET, LIFECYCLE, SUBMISSIONS

CORE_VERSION: Final = "1"  # of decide, evolve and digest: a takeover and replay compare those of one version only
ROUND_INPUTS_MAX: Final = 5_000  # a round stays below about 200 ms
FOLLOWUPS_MAX: Final = 5_000
PLACEMENTS_MAX: Final = 5_000  # with the above, a round's index stays far below the 16 bits of a token
_FLEET: Final = frozenset(ev.FLEET_EVENTS)  # asked by type: an instance check of a pydantic model takes 1 µs
POSITIONS_EVERY: Final = 64  # rounds between two records that name every position


class RoundFailed(Exception):
    """A round broke on one input or job: the state is spoilt. `cause` is an input's, `job` a (tenant, job id)."""

    def __init__(self, cause: str, job: tuple[str, str] | None, reason: str) -> None:
        super().__init__(f"the round broke on {cause if job is None else f'job {job[1]} of tenant {job[0]}'}: {reason}")
        self.cause = cause
        self.job = job
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a leader is configured with."""

    cell: str
    lease: LeaseTimes
    grants: Grants = field(default_factory=dict)


class LogRecord(NamedTuple):
    """A fact with its place: `value` is its JSON, `key` the tenant or machine."""

    topic: str
    partition: int
    key: str
    event: Message
    value: bytes
    stamp: Stamp


class DispatchRecord(NamedTuple):
    """A message to one machine's mailbox."""

    machine_id: str
    type_name: str
    value: bytes


@dataclass(slots=True)
class Round:
    """What one pass made."""

    number: int
    epoch: int
    now_ms: int
    records: list[LogRecord] = field(default_factory=list)
    dispatches: list[DispatchRecord] = field(default_factory=list)
    dead_letters: list[tuple[Input, Fault]] = field(default_factory=list)
    written: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)
    record: ev.RoundCommitted | None = None
    more: bool = False  # a bound was met: there is more to decide at once


@dataclass(frozen=True, slots=True)
class Suspects:
    """What broke a round before: these inputs become dead letters unseen, these jobs fail as quarantined."""

    causes: frozenset[str] = frozenset()
    jobs: frozenset[tuple[str, str]] = frozenset()


def run_round(
    state: State,
    inputs: Sequence[Input],
    now_ms: int,
    rules: Rules,
    *,
    suspects: Suspects = Suspects(),
    answered: frozenset[str] = frozenset(),
    epoch_start: ev.EpochStart | None = None,
) -> Round:
    """Decide on what is known. `answered` are causes that a torn round has answered already: no fact is made again.

    Raises RoundFailed where a fact cannot be applied; a record that cannot even be answered is a dead letter.
    """
    # What an epoch's first record says of positions is then what they are before any of its inputs is read.
    assert epoch_start is None or not inputs, "an epoch's first round takes no inputs"
    this = Round(state.round + 1, state.epoch, max(now_ms, state.now_ms))
    if epoch_start is not None:  # nor decides anything: facts of an epoch come after what its first record says
        this.record = _close(state, this, {}, rules, 0, epoch_start)
        return this
    ordered = sorted(inputs, key=lambda record: record.order)
    ranges = _ranges(state, ordered)
    # Starts are told before the reports of the same round, so that a short job is seen running too.
    reports_at = bisect_left(ordered, TOPIC_ORDER[COMPLETIONS.name], key=lambda record: record.order[0])
    for record in ordered[:reports_at]:
        _take(state, this, record, rules, suspects, answered)
    _follow(state, this, starts(state, FOLLOWUPS_MAX))
    for record in ordered[reports_at:]:
        _take(state, this, record, rules, suspects, answered)
    _quarantine(state, this, suspects)
    followed = _follow(state, this, followups(state, rules.lease, FOLLOWUPS_MAX))
    assignments = place(state, rules.lease, this.number, lambda: len(this.records), PLACEMENTS_MAX)
    placed = _follow(state, this, assignments)
    this.more = followed == FOLLOWUPS_MAX or placed == PLACEMENTS_MAX or bool(state.soft.to_start)
    this.record = _close(state, this, ranges, rules, _forget_before(state, ordered), None)
    return this


def _take(state: State, this: Round, record: Input, rules: Rules, suspects: Suspects, answered: frozenset[str]) -> None:
    cause = record.cause
    seen_before = record.offset < state.positions.get((record.topic, record.partition), 0)
    if cause in suspects.causes:
        this.dead_letters.append((record, Fault("broke_a_round", "deciding on this record failed; see the log")))
        return
    if not seen_before and cause not in answered:  # signs of life are read again at a takeover, and only observed
        try:
            said = answer(state, record, rules.grants)
            value = None if said.event is None else encode(said.event)
        except Exception as error:  # whatever it is: one record stops nobody
            said, value = Answer(fault=Fault("undecidable", f"{type(error).__name__}: {error}"[:500])), None
        if value is not None and len(value) > VALUE_BYTES_MAX:
            said, value = Answer(fault=Fault("too_large", f"its event would have {len(value)} bytes")), None
        if said.fault is not None:
            this.dead_letters.append((record, said.fault))
        if said.event is not None:
            _write(state, this, said.event, cause, value)
    try:
        told = observe(state, record)
    except Exception as error:
        raise RoundFailed(cause, None, f"{type(error).__name__}: {error}") from error
    if told and not seen_before:
        this.dispatches.extend(map(dispatch_record, told))


def _follow(state: State, this: Round, facts: Iterable[Message]) -> int:
    """Write what follows from the state, each before the next is decided; how many. Raises RoundFailed."""
    count = 0
    try:
        for fact in facts:
            _write(state, this, fact, CAUSE_STATE)
            count += 1
    except RoundFailed:
        raise
    except Exception as error:  # in deciding: no one record or job is known to be at fault
        raise RoundFailed(CAUSE_STATE, None, f"{type(error).__name__}: {error}") from error
    return count


def _write(state: State, this: Round, event: Message, cause: str, value: bytes | None = None) -> None:
    """Number a fact, apply it, and queue what its machine must be told."""
    if type(event) in _FLEET:
        topic, key = FLEET.name, cast(ev.MachineEvent, event).machine_id
    else:
        topic, key = LIFECYCLE.name, cast(ev.JobEvent, event).tenant
    assert len(this.records) < 1 << TOKEN_INDEX_BITS, "a round has more facts than a token's index can count"
    partition = state.partition_of(key)
    place_in_log = (topic, partition)
    sequence = state.next_sequence.get(place_in_log, 0)
    stamp = Stamp(
        sequence=sequence,
        epoch=this.epoch,
        round=this.number,
        index=len(this.records),
        cause=cause,
        at_ms=this.now_ms,
    )
    try:
        evolve(state, event, stamp)
        this.records.append(LogRecord(topic, partition, key, event, encode(event) if value is None else value, stamp))
        if (dispatch := _dispatch_of(state, event)) is not None:
            this.dispatches.append(dispatch)
    except Exception as error:
        job = (event.tenant, event.job_id) if isinstance(event, ev.JobEvent) and cause == CAUSE_STATE else None
        raise RoundFailed(cause, job, f"{type(error).__name__}: {error}") from error
    state.next_sequence[place_in_log] = sequence + 1
    first, _ = this.written.get(place_in_log, (sequence, 0))
    this.written[place_in_log] = (first, sequence + 1)


def _dispatch_of(state: State, event: Message) -> DispatchRecord | None:
    """What follows a fact into a mailbox, once the round has committed."""
    if type(event) is not ev.JobAssigned and type(event) is not ev.CancelRequested:
        return None
    event = cast(ev.JobEvent, event)
    return lease_dispatch(state.jobs[event.tenant, event.job_id])


def lease_dispatch(job: Job) -> DispatchRecord | None:
    """What the machine that holds a job's lease must be told: start it, or cancel it. None: there is no lease."""
    lease = job.lease
    if lease is None:
        return None
    names: dict[str, object] = {
        "machine_id": lease.machine_id,
        "session": lease.session,
        "tenant": job.tenant,
        "job_id": job.job_id,
        "attempt": lease.attempt,
        "token": lease.token,
    }
    if job.cancel_requested:
        return dispatch_record(ev.CancelAttempt.model_validate(names))
    value = encode_with_spec({**names, "presence": lease.presence}, job.spec_json)
    return DispatchRecord(lease.machine_id, ev.AssignAttempt.TYPE, value)


def dispatch_record(dispatch: ev.Dispatch) -> DispatchRecord:
    return DispatchRecord(dispatch.machine_id, dispatch.TYPE, encode(dispatch))


def _quarantine(state: State, this: Round, suspects: Suspects) -> None:
    for key in sorted(suspects.jobs):
        if (job := state.jobs.get(key)) is not None:
            detail = "deciding on this job failed; see the leader's log"
            failed = ev.JobFailed(tenant=job.tenant, job_id=job.job_id, reason="quarantined", detail=detail)
            _write(state, this, failed, CAUSE_STATE)


def _ranges(state: State, inputs: Iterable[Input]) -> dict[str, dict[int, tuple[int, int]]]:
    """[first, next) offsets of each partition that was read."""
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    for record in inputs:
        partitions = ranges.setdefault(record.topic, {})
        first, _ = partitions.get(record.partition, (record.offset, 0))
        partitions[record.partition] = (first, record.offset + 1)
    for topic, partitions in ranges.items():
        for partition, (_, after) in partitions.items():
            state.soft.read[topic, partition] = after
    return ranges


def _close(
    state: State,
    this: Round,
    ranges: Mapping[str, Mapping[int, tuple[int, int]]],
    rules: Rules,
    forget_before_ms: int,
    epoch_start: ev.EpochStart | None,
) -> ev.RoundCommitted:
    written: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), span in this.written.items():
        written.setdefault(topic, {})[partition] = span
    record = ev.RoundCommitted(
        cell=rules.cell,
        round=this.number,
        epoch=this.epoch,
        now_ms=this.now_ms,
        inputs=ranges,
        written=written,
        core_version=CORE_VERSION,
        digest=state.digest,
        forget_before_ms=forget_before_ms,
        epoch_start=epoch_start,
    )
    evolve_round(state, record)
    if epoch_start is None and this.number % POSITIONS_EVERY:
        return record
    positions: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(state.positions.items()):
        positions.setdefault(topic, {})[partition] = offset
    return record.model_copy(update={"positions": positions, "answered": _answered(state)})


def _answered(state: State) -> dict[str, dict[int, tuple[int, ...]]]:
    """The inputs still to be read again that are answered already, by topic and partition."""
    found: dict[str, dict[int, list[int]]] = {}
    for topic, partition, offset in sorted(split_cause(cause) for cause in state.answered):
        if offset >= state.positions.get((topic, partition), 0):
            found.setdefault(topic, {}).setdefault(partition, []).append(offset)
    return {topic: {p: tuple(offsets) for p, offsets in partitions.items()} for topic, partitions in found.items()}


def _forget_before(state: State, inputs: Iterable[Input]) -> int:
    """Since when ends must be known: no submission still unread names a job of before. As old as the oldest just read."""
    read = [record.appended_ms for record in inputs if base_topic(record.topic) == SUBMISSIONS.name]
    if not read or not state.soft.lower(state.soft.unread):
        return 0
    return max(0, min(read) - WINDOW_MS)
