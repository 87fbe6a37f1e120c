"""From the records of one partition to row operations and the position after them. Pure: bytes in, operations out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobstream.projector.changes import Changes
from jobstream.projector.rows import merge
from jobstream.runtime.errors import LogBroken
from jobstream.schemas.codec import decode
from jobstream.schemas.envelope import from_headers
from jobstream.schemas.errors import Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where reading of a partition goes on; `topic` is without the prefix. `round_offset`: `last_round`'s first record."""

    topic: str
    partition: int
    next_offset: int = 0
    next_sequence: int = 0
    last_epoch: int = 0
    last_round: int = 0
    round_offset: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the log as it was read."""

    offset: int
    headers: Sequence[tuple[str, bytes | None]]
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a batch holds of one partition, up to the first record that is `broken`, where one is."""

    before: Position
    after: Position
    changes: Changes
    records: Sequence[Record]
    newest_ms: int
    broken: LogBroken | None = None


def fold(position: Position, records: Sequence[Record]) -> Slice:
    """Merge records that follow the position, in order, until one that is not readable, in sequence, or a fact that follows."""
    try:
        return _fold(position, records)
    except _Broken as broken:
        # The half of it that may be merged already is in the way: once more, with what was good.
        return replace(_fold(position, records[: broken.index]), broken=broken.error)


class _Broken(Exception):
    def __init__(self, index: int, error: LogBroken) -> None:
        super().__init__(str(error))
        self.index = index
        self.error = error


def _fold(position: Position, records: Sequence[Record]) -> Slice:
    topic, partition, sequence = position.topic, position.partition, position.next_sequence
    next_offset, epoch, last_round, round_offset = (
        position.next_offset,
        position.last_epoch,
        position.last_round,
        position.round_offset,
    )
    changes, newest_ms = Changes(), 0
    for index, record in enumerate(records):
        offset = record.offset
        try:
            envelope = from_headers(record.headers)
            stamp = envelope.stamp
            if stamp is None:
                raise LogBroken("the record has no sequence number")
            if stamp.sequence != sequence:
                raise LogBroken(
                    f"sequence number {stamp.sequence} follows, not {sequence}: "
                    + ("a repeat" if stamp.sequence < sequence else f"{stamp.sequence - sequence} are missing")
                )
            merge(changes, decode(envelope.type, record.value), stamp, topic, partition, offset)
        except (Unreadable, LogBroken) as error:
            raise _Broken(index, LogBroken(f"{topic}/{partition} at offset {offset}: {error}")) from None
        sequence += 1
        next_offset = offset + 1
        epoch, newest_ms = stamp.epoch, stamp.at_ms
        if stamp.round != last_round:
            last_round, round_offset = stamp.round, offset
    after = Position(
        topic=topic,
        partition=partition,
        next_offset=next_offset,
        next_sequence=sequence,
        last_epoch=epoch,
        last_round=last_round,
        round_offset=round_offset,
    )
    return Slice(before=position, after=after, changes=changes, records=records, newest_ms=newest_ms)
