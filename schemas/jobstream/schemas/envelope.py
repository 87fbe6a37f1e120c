"""The envelope of a record: CloudEvents 1.0 in Kafka's binary mode, as headers; the value is the data alone.

A record of the log also carries a `Stamp` in extension attributes, so that a reader can tell a gap from a repeat.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from jobstream.schemas.errors import Unreadable

SPEC_VERSION: Final = b"1.0"
CONTENT_TYPE: Final = b"application/json"
TOKEN_INDEX_BITS: Final = 16  # events of one round; the rest of 63 bits is the round: 40 years at 100,000 rounds/s
CAUSE_STATE: Final = "state"  # what follows from the state, not from one input

Headers = list[tuple[str, str | bytes | None]]  # the type that Kafka clients take; the values here are bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Where a record of the log belongs. `sequence` is dense in its partition, `index` counts a round's records from 0.

    `cause` is "topic/partition/offset" of the input that it answers (topic without prefix), or "state".
    `at_ms` is the round's `now` (the broker's clock, ms since 1970).
    """

    sequence: int
    epoch: int
    round: int
    index: int
    cause: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    id: str
    type: str
    source: str
    time: str
    traceparent: str | None = None
    stamp: Stamp | None = None


def fencing_token(round_number: int, index: int) -> int:
    """The number of a lease: grows with (round, index), and so over all leases of a cell."""
    return (round_number << TOKEN_INDEX_BITS) | index


def format_time(at_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time; raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("has no time zone")
    return round(moment.timestamp() * 1000)


def to_headers(envelope: Envelope) -> Headers:
    headers: Headers = [
        ("ce_specversion", SPEC_VERSION),
        ("ce_id", envelope.id.encode()),
        ("ce_type", envelope.type.encode()),
        ("ce_source", envelope.source.encode()),
        ("ce_time", envelope.time.encode()),
        ("content-type", CONTENT_TYPE),
    ]
    if envelope.traceparent is not None:
        headers.append(("traceparent", envelope.traceparent.encode()))
    if (stamp := envelope.stamp) is not None:
        headers.extend(stamp_headers(stamp))
    return headers


def stamp_headers(stamp: Stamp) -> Headers:
    return [
        ("ce_sequence", b"%d" % stamp.sequence),
        ("ce_epoch", b"%d" % stamp.epoch),
        ("ce_round", b"%d" % stamp.round),
        ("ce_index", b"%d" % stamp.index),
        ("ce_cause", stamp.cause.encode()),
    ]


def from_headers(headers: Iterable[tuple[str, bytes | None]] | None) -> Envelope:
    """Read an envelope; raises Unreadable("envelope") where a required attribute is missing or no text."""
    try:
        found = dict(headers or ())
        kind, source, identity = _text(found, "ce_type"), _text(found, "ce_source"), _text(found, "ce_id")
        time, traceparent = found.get("ce_time"), found.get("traceparent")
        stamp = None
        if (sequence := found.get("ce_sequence")) is not None:
            stamp = Stamp(
                sequence=int(sequence),
                epoch=int(_text(found, "ce_epoch")),
                round=int(_text(found, "ce_round")),
                index=int(_text(found, "ce_index")),
                cause=_text(found, "ce_cause"),
                at_ms=parse_time(_text(found, "ce_time")),
            )
        return Envelope(
            id=identity,
            type=kind,
            source=source,
            time="" if time is None else time.decode(),
            traceparent=None if traceparent is None else traceparent.decode(),
            stamp=stamp,
        )
    except KeyError as error:
        raise Unreadable("envelope", f"the header {error.args[0]} is missing") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise Unreadable("envelope", f"a header cannot be read: {error}") from None


def _text(headers: dict[str, bytes | None], name: str) -> str:
    value = headers[name]
    if value is None:
        raise KeyError(name)
    return value.decode()
