"""The headers of a record, there and back, and what is no envelope."""

import pytest

from jobstream.schemas.envelope import (
    Envelope,
    Stamp,
    fencing_token,
    format_time,
    from_headers,
    parse_time,
    to_headers,
)
from jobstream.schemas.errors import DETAIL_LENGTH_MAX, Unreadable

STAMP = Stamp(sequence=7, epoch=2, round=19, index=3, cause="submissions/0/5", at_ms=1_790_000_000_123)
ENVELOPE = Envelope(
    id="e1",
    type="jobstream.job.accepted.v1",
    source="jobstream/leader/cell-0",
    time=format_time(STAMP.at_ms),
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    stamp=STAMP,
)


def test_an_envelope_comes_back_as_it_was() -> None:
    assert from_headers((name, value) for name, value in to_headers(ENVELOPE) if isinstance(value, bytes)) == ENVELOPE


@pytest.mark.parametrize("name", ["ce_id", "ce_type", "ce_source", "ce_epoch", "ce_round", "ce_index", "ce_cause"])
def test_a_missing_attribute_is_named(name: str) -> None:
    headers = [(key, value) for key, value in to_headers(ENVELOPE) if key != name and isinstance(value, bytes)]
    with pytest.raises(Unreadable, match=name):
        from_headers(headers)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ce_type", b"\xff"),
        ("ce_sequence", b"seven"),
        ("ce_sequence", b""),
        ("ce_round", b"1.5"),
        ("ce_time", b"yesterday"),
        ("ce_time", b"2030-01-31T00:00:00"),
        ("ce_sequence", b"9" * 5_000),
    ],
)
def test_an_attribute_that_cannot_be_read_is_unreadable(name: str, value: bytes) -> None:
    headers = [(key, text) for key, text in to_headers(ENVELOPE) if isinstance(text, bytes)]
    with pytest.raises(Unreadable):
        from_headers([*headers, (name, value)])


def test_what_is_said_of_a_huge_header_is_short() -> None:
    headers = [(key, text) for key, text in to_headers(ENVELOPE) if isinstance(text, bytes)]
    with pytest.raises(Unreadable) as raised:
        from_headers([*headers, ("ce_time", b"\\" * 2_000_000)])
    assert len(raised.value.detail) == len(str(raised.value)) - len("envelope: ") == DETAIL_LENGTH_MAX


def test_no_headers_at_all_are_unreadable() -> None:
    with pytest.raises(Unreadable, match="ce_type"):
        from_headers(None)


@pytest.mark.parametrize("at_ms", [0, 1, 999, 1_790_000_000_123, 4_102_444_799_999])
def test_times_keep_their_milliseconds(at_ms: int) -> None:
    assert parse_time(format_time(at_ms)) == at_ms


def test_tokens_grow_with_rounds_and_within_them() -> None:
    assert fencing_token(5, 0) < fencing_token(5, 1) < fencing_token(5, 65_535) < fencing_token(6, 0)
