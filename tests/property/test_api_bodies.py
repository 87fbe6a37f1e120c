"""Whatever is sent: a refusal that names the fault, or a command that everybody reads alike."""

import math
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobstream.api import cursors
from jobstream.api.bodies import parse_object
from jobstream.api.models import parse_job, rounded_up
from jobstream.api.problems import Problem
from jobstream.schemas.codec import VALUE_BYTES_MAX, decode, digest_of, encode
from jobstream.schemas.commands import COMMAND_BYTES_MAX, ENV_BYTES_MAX, JobSpec, SubmitJob
from jobstream.schemas.new_ids import new_job_id

numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**64 - 1), st.floats(1e-9, 1_000)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.one_of(texts, st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(good, good, good, good, anything)


def labels() -> st.SearchStrategy[dict[str, str]]:
    text = st.from_regex(r"[A-Za-z0-9]([a-z/-]{0,5}[a-z0-9])?", fullmatch=True)
    return st.dictionaries(text, text, max_size=3)


amounts = st.one_of(st.floats(0.0001, 1_000), st.integers(1, 1_000))
bodies = st.fixed_dictionaries(
    {
        "name": mostly(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)),
        "command": mostly(st.one_of(st.lists(texts.filter(bool), min_size=1, max_size=4), texts.filter(bool))),
        "resources": mostly(st.fixed_dictionaries({"cpu": mostly(amounts), "memory_gb": mostly(amounts)})),
    },
    optional={
        "priority": mostly(st.sampled_from(["critical", "high", "normal", "low"])),
        "queue": mostly(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True)),
        "timeout_seconds": mostly(amounts),
        "env": mostly(st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), texts, max_size=3)),
        "labels": mostly(labels()),
        "required_labels": mostly(labels()),
        "depends_on": anything,
    },
)


def accepted(body: bytes) -> JobSpec | None:
    try:
        spec = parse_job(parse_object(body))
    except Problem as problem:
        assert problem.status in (400, 422)
        orjson.loads(problem.response().body)
        return None
    command = SubmitJob(tenant="alice", job_id=new_job_id(), spec=spec)
    value = encode(command)
    assert len(value) <= VALUE_BYTES_MAX
    read = decode(SubmitJob.TYPE, value)
    assert read == command
    assert isinstance(read, SubmitJob)
    assert digest_of(read.spec) == digest_of(spec)
    return spec


@given(st.one_of(bodies, anything))
@settings(max_examples=200)
def test_any_json_is_refused_by_name_or_becomes_a_command(body: Any) -> None:
    accepted(orjson.dumps(body))


@given(st.one_of(st.binary(max_size=200), bodies.map(orjson.dumps).flatmap(lambda body: mangled(body))))
@settings(max_examples=200)
@example(b"[" * 100_000)
@example(b'{"name":' * 1_020)
@example(b"1" * 5_000)
def test_any_bytes_are_refused_or_become_a_command(body: bytes) -> None:
    accepted(body)


def mangled(body: bytes) -> st.SearchStrategy[bytes]:
    """A body with a piece replaced."""
    pieces = st.sampled_from(
        [b"\\u0000", b"\\ud800", b"\x00", b"\xff", b"NaN", b"1e999", b'"', b"{", b"]", b"-0.0", b""]
    )
    return st.builds(
        lambda at, length, piece: body[:at] + piece + body[at + length :],
        st.integers(0, len(body)),
        st.integers(0, 8),
        pieces,
    )


@given(st.floats(1e-12, 1_000), st.sampled_from([1_000, 1_024]))
def test_rounding_gives_at_least_what_was_asked_and_less_than_one_more(value: float, per_unit: int) -> None:
    whole = rounded_up(value, per_unit)
    assert whole >= 1
    assert whole / per_unit >= value or math.isclose(whole / per_unit, value, rel_tol=1e-15)
    assert (whole - 1) / per_unit < value


@given(st.integers(1, 1_000_000))
def test_what_is_answered_may_be_sent_again(millis: int) -> None:
    assert rounded_up(millis / 1_000, 1_000) == millis
    assert rounded_up(millis / 1_024, 1_024) == millis


@given(st.text(max_size=100))
def test_any_text_is_a_refusal_as_a_cursor(cursor: str) -> None:
    for read in (cursors.read_job, cursors.read_name):
        try:
            read(("jobs", "alice", None, None), cursor)
        except Problem as problem:
            assert problem.status == 400
        else:
            raise AssertionError("a made-up cursor was taken")


def test_the_largest_job_fits_a_record() -> None:
    """Control characters take six bytes each as JSON: the limits leave room for them all."""
    body = {
        "name": "\U0001f680" * 200,
        "command": ["a" + "\x01" * (COMMAND_BYTES_MAX - 1_000), *(["\x01"] * 400)],
        "resources": {"cpu": 1_000, "memory_gb": 65_536},
        "env": {f"A{number:03}": "\x01" * (ENV_BYTES_MAX // 256 - 6) for number in range(256)},
        "labels": {f"a{number:02}" + "x" * 125: "y" * 128 for number in range(32)},
        "required_labels": {f"a{number:02}" + "x" * 125: "y" * 128 for number in range(32)},
    }
    assert accepted(orjson.dumps(body)) is not None
