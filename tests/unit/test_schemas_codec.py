"""Values that senders got wrong, or made on purpose: each is refused with a reason, none takes the reader down."""

import time
from typing import Any

import orjson
import pytest
from tests.support.samples import SAMPLES, SPEC

from jobstream.schemas import upcasts
from jobstream.schemas.base import INT64_MAX
from jobstream.schemas.codec import DETAIL_LENGTH_MAX, VALUE_BYTES_MAX, decode, digest_of, encode, parse_json
from jobstream.schemas.commands import CancelJob, JobSpec, MachinePresent, SubmitJob
from jobstream.schemas.errors import Unreadable

SUBMIT = SubmitJob.TYPE
VALUE = encode(SAMPLES[SUBMIT])


def changed(**fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(VALUE), **fields})


def with_spec(**fields: Any) -> bytes:
    body = orjson.loads(VALUE)
    return orjson.dumps({**body, "spec": {**body["spec"], **fields}})


def raw_spec(field: str, text: str) -> bytes:
    """A spec with one field as it stands in JSON, right or wrong."""
    return with_spec(**{field: "HERE"}).replace(b'"HERE"', text.encode())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"{", "json"),
        (b"\xff\xfe", "json"),
        (b"nul", "json"),
        (b"[]", "schema"),
        (b"null", "schema"),
        (b'"text"', "schema"),
        (b"{}", "schema"),
        (b" " * (VALUE_BYTES_MAX + 1), "too_large"),
        (b"[" * 100_000, "json"),
        (b"[" * 100_000 + b"]" * 100_000, "json"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "json"),
        (raw_spec("name", r'"a\u0000b"'), "text"),
        (raw_spec("name", r'"a\ud800b"'), "json"),
        (raw_spec("name", r'"\udc00\ud800"'), "json"),
        (raw_spec("env", r'{"A\u0000": "x"}'), "text"),
        (raw_spec("name", '"\x01"'), "json"),
        (changed(tenant="Acme"), "schema"),
        (changed(tenant="acme\n"), "schema"),
        (changed(tenant=1), "schema"),
        (changed(job_id="not one"), "schema"),
        (changed(job_id=SAMPLES[SUBMIT].model_dump()["job_id"].upper()), "schema"),
    ],
)
def test_a_value_that_cannot_be_read_has_a_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        decode(SUBMIT, value)
    assert caught.value.reason == reason
    assert 0 < len(caught.value.detail) <= DETAIL_LENGTH_MAX


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e400", "1e308", "-1", "-0.0", "0", "1.5", '"1"', "true", "null", "9" * 5_000],
)
@pytest.mark.parametrize("field", ["cpu_millis", "memory_mib"])
def test_a_number_that_is_no_amount_is_refused(field: str, number: str) -> None:
    resources = {"cpu_millis": "1", "memory_mib": "1", field: number}
    text = "{" + ", ".join(f'"{name}": {amount}' for name, amount in resources.items()) + "}"
    with pytest.raises(Unreadable) as caught:
        decode(SUBMIT, raw_spec("resources", text))
    assert caught.value.reason in ("json", "schema")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("command", "[]"),
        ("command", '""'),
        ("command", '["", "x"]'),
        ("command", orjson.dumps(["x" * 100_000]).decode()),
        ("command", orjson.dumps(["x"] * 1_001).decode()),
        ("env", '{"1A": "x"}'),
        ("env", '{"A=B": "x"}'),
        ("env", orjson.dumps({f"A{n}": "x" for n in range(257)}).decode()),
        ("env", '{"A": "' + "é" * 40_000 + '"}'),
        ("name", r'"a\nb"'),
        ("name", '""'),
        ("name", '"' + "x" * 201 + '"'),
        ("queue", '"../../etc"'),
        ("timeout_ms", "0"),
        ("timeout_ms", "2592000001"),
        ("labels", '{"a b": "c"}'),
        ("priority", '"urgent"'),
    ],
)
def test_a_spec_that_could_not_run_is_refused(field: str, text: str) -> None:
    with pytest.raises(Unreadable, match="schema"):
        decode(SUBMIT, raw_spec(field, text))


def test_what_is_wrong_is_said_without_the_value() -> None:
    with pytest.raises(Unreadable) as caught:
        decode(SUBMIT, with_spec(env={"PASSWORD": 17_345_678}, queue="top secret"))
    assert "spec.env" in caught.value.detail and "spec.queue" in caught.value.detail
    assert "secret" not in caught.value.detail and "17345678" not in caught.value.detail


def test_an_unknown_type_is_told_from_a_bad_value() -> None:
    with pytest.raises(Unreadable, match="unknown_type"):
        decode("jobstream.job.submit.v9", VALUE)
    with pytest.raises(Unreadable) as caught:
        decode("x" * 100_000, b"{}")
    assert caught.value.reason == "unknown_type" and len(caught.value.detail) < 300


def test_unknown_fields_are_accepted_everywhere() -> None:
    assert decode(SUBMIT, changed(later=[1, {"a": None}])) == SAMPLES[SUBMIT]
    assert decode(SUBMIT, with_spec(later=True)) == SAMPLES[SUBMIT]


def test_a_written_nul_is_told_from_an_escaped_backslash() -> None:
    assert parse_json(rb'{"a": "\\u0000"}') == {"a": r"\u0000"}
    with pytest.raises(Unreadable, match="text"):
        parse_json(rb'{"a": [["\u0000"]]}')


def test_a_hostile_value_is_refused_at_once() -> None:
    """A nest as deep as the parser takes, with the text that makes the reader look for NUL. Never recursion."""
    depth = 1_000
    value = b"[" * depth + rb'"\u0000"' + b"]" * depth
    started = time.process_time()
    with pytest.raises(Unreadable):
        decode(SUBMIT, value)
    assert time.process_time() - started < 5  # not a measure: an endless loop would fail


def test_values_at_their_default_are_not_written() -> None:
    plain = JobSpec(name="a", command="true", resources=SPEC.resources)
    assert set(orjson.loads(encode(plain))) == {"name", "command", "resources"}
    assert decode(CancelJob.TYPE, encode(CancelJob(tenant="a", job_id=SAMPLES[SUBMIT].model_dump()["job_id"])))


def test_the_digest_tells_bodies_apart_and_not_their_order() -> None:
    turned = {**SPEC.model_dump(), "env": dict(reversed(list(SPEC.env.items())))}
    assert digest_of(JobSpec.model_validate(turned)) == digest_of(SPEC)
    assert digest_of(SPEC.model_copy(update={"queue": "other"})) != digest_of(SPEC)
    explicit = JobSpec.model_validate({**SPEC.model_dump(), "env": {}})
    assert digest_of(explicit) == digest_of(SPEC.model_copy(update={"env": {}}))


def test_upcasts_are_chained() -> None:
    def first(content: object) -> tuple[str, object]:
        assert isinstance(content, dict)
        return "b", {**content, "one": 1}

    def second(content: object) -> tuple[str, object]:
        assert isinstance(content, dict)
        return "c", {**content, "two": 2}

    table = {"a": first, "b": second}
    assert upcasts.upcast("a", {}, table) == ("c", {"one": 1, "two": 2})
    assert upcasts.upcast("b", {}, table) == ("c", {"two": 2})
    assert upcasts.upcast("c", {}, table) == ("c", {})


def test_a_presence_that_no_assignment_could_name_is_unreadable() -> None:
    """The leader could not write an assignment to its machine, nor, after it, anything else."""
    number = INT64_MAX + 1
    with pytest.raises(Unreadable, match="number"):
        decode(MachinePresent.TYPE, orjson.dumps({"machine_id": "m", "session": "s", "number": number}))
