"""From HTTP bodies and headers to commands: amounts, limits, names of fields."""

from typing import Any

import pytest

from jobstream.api import models
from jobstream.api.bodies import parse_object
from jobstream.api.problems import Problem
from jobstream.schemas.commands import JobSpec
from jobstream.schemas.resources import Resources

BODY: dict[str, Any] = {"name": "a", "command": ["true"], "resources": {"cpu": 1, "memory_gb": 1}}


def refused(**changes: Any) -> list[tuple[str, str]]:
    with pytest.raises(Problem) as caught:
        models.parse_job(BODY | changes)
    assert caught.value.status == 422
    return list(caught.value.errors)


@pytest.mark.parametrize(
    ("cpu", "millis"),
    [
        (1, 1_000),
        (0.1, 100),
        (0.07, 70),
        (0.29, 290),
        (1.001, 1_001),
        (0.0001, 1),
        (0.0701, 71),
        (1e-300, 1),
        (1_000, 1_000_000),
    ],
)
def test_cpu_is_rounded_up_to_a_millicore(cpu: float, millis: int) -> None:
    spec = models.parse_job(BODY | {"resources": {"cpu": cpu, "memory_gb": 1}})
    assert spec.resources.cpu_millis == millis


@pytest.mark.parametrize(
    ("memory_gb", "mib"), [(1, 1_024), (0.5, 512), (0.1, 103), (1e-9, 1), (1.0009765625, 1_025), (65_536, 67_108_864)]
)
def test_memory_is_rounded_up_to_a_mib(memory_gb: float, mib: int) -> None:
    spec = models.parse_job(BODY | {"resources": {"cpu": 1, "memory_gb": memory_gb}})
    assert spec.resources.memory_mib == mib


PLAIN = JobSpec(name="a", command=("true",), resources=Resources(cpu_millis=1_000, memory_mib=1_024))


def test_defaults_and_both_kinds_of_command() -> None:
    assert models.parse_job(BODY) == PLAIN
    assert models.parse_job(BODY | {"command": "a | b"}).command == "a | b"
    assert models.parse_job(BODY | {"timeout_seconds": None}).timeout_ms is None
    assert models.parse_job(BODY | {"timeout_seconds": 0.0001}).timeout_ms == 1
    assert models.parse_job(BODY | {"timeout_seconds": 2_592_000}).timeout_ms == 30 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": 1}, "name"),
        ({"command": []}, "command"),
        ({"command": ""}, "command"),
        ({"command": {"a": 1}}, "command"),
        ({"command": None}, "command"),
        ({"command": ["a", 1]}, "command[1]"),
        ({"command": [""]}, "command"),
        ({"command": ["x"] * 1_001}, "command"),
        ({"command": "x" * 98_305}, "command"),
        ({"command": ["é" * 49_152, "x"]}, "command"),
        ({"resources": None}, "resources"),
        ({"resources": {"cpu": 1}}, "resources.memory_gb"),
        ({"resources": {"cpu": True, "memory_gb": 1}}, "resources.cpu"),
        ({"resources": {"cpu": "1", "memory_gb": 1}}, "resources.cpu"),
        ({"resources": {"cpu": 1, "memory_gb": -0.0}}, "resources.memory_gb"),
        ({"resources": {"cpu": 1_000.0001, "memory_gb": 1}}, "resources.cpu"),
        ({"resources": {"cpu": 1, "memory_gb": 1, "gpu": 1}}, "resources.gpu"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": None}, "priority"),
        ({"queue": "a/b"}, "queue"),
        ({"queue": "a\n"}, "queue"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": 2_592_001}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"env": None}, "env"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A=B": "x"}}, "env.A=B"),
        ({"env": {f"A{number}": "" for number in range(257)}}, "env"),
        ({"env": {"A": "x" * 65_537}}, "env.A"),
        ({"env": {"A": "x" * 33_000, "B": "x" * 33_000}}, "env"),
        ({"labels": {"a b": "c"}}, "labels.a b"),
        ({"labels": {f"a{number}": "b" for number in range(33)}}, "labels"),
        ({"required_labels": {"a": ""}}, "required_labels.a"),
    ],
)
def test_each_fault_names_its_field(changes: dict[str, Any], field: str) -> None:
    assert [name for name, _ in refused(**changes)] == [field]


def test_all_faults_are_told_at_once_and_none_repeats_a_value() -> None:
    faults = refused(env={"TOKEN": ["s3cret"]}, depends_on=["x"], schedule=None, colour="s3cret", priority="s3cret")
    assert {name for name, _ in faults} == {"env.TOKEN", "depends_on", "schedule", "colour", "priority"}
    assert dict(faults)["depends_on"] == "is not supported yet" and dict(faults)["colour"] == "unknown field"
    assert "s3cret" not in repr(faults)


def test_a_problem_stays_small_however_many_faults_there_are() -> None:
    with pytest.raises(Problem) as caught:
        models.parse_job(BODY | {"x" * 5_000 + str(number): 1 for number in range(1_000)})
    assert len(caught.value.response().body) < 20_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        b"NaN",
        b'{"a": NaN}',
        b'{"a": 1e400}',
        b"[" * 100_000,
        b'{"a":' * 1_000 + b"1" + b"}" * 1_000,
        b'{"a": ' + b"9" * 5_000 + b"}",
        b"\xff",
        b'{"a": "\\ud800"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_object_is_400(body: bytes) -> None:
    with pytest.raises(Problem) as caught:
        parse_object(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"a": {"b": 1, "\\u0062": 2}}', "b"),
        (b'{"a": "\\u0000"}', "a"),
        (b'{"a": {"b": [1, "x\\u0000"]}}', "a.b[1]"),
        (b'{"a": {"b\\u0000": 1}}', "a"),
        (b'{"\\u0000": 1}', "body"),
    ],
)
def test_repeated_names_and_nul_are_422_and_named(body: bytes, field: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_object(body)
    assert caught.value.status == 422
    assert [name for name, _ in caught.value.errors] == [field]


def test_an_escaped_backslash_before_u0000_is_fine() -> None:
    assert parse_object(b'{"a": "\\\\u0000"}') == {"a": "\\u0000"}


def test_looking_for_nul_in_a_deep_and_wide_body_is_cheap() -> None:
    body = b'{"a":' + b"[" * 1_000 + b'"\\u0000",' + b"1," * 400_000 + b"1" + b"]" * 1_000 + b"}"
    with pytest.raises(Problem) as caught:
        parse_object(body)
    assert caught.value.errors[0][0] == "body"  # not looked for to the end


def test_repeated_names_in_a_wide_body_are_found_fast() -> None:
    body = b"{" + b",".join(b'"%d":1' % number for number in range(80_000)) + b',"79999":2}'
    with pytest.raises(Problem) as caught:
        parse_object(body)
    assert caught.value.errors == (("79999", "is given twice in one object"),)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", False),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
        ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n", False),
        ("x" * 10_000, False),
    ],
)
def test_only_a_trace_context_passes_through(value: str, taken: bool) -> None:
    assert models.parse_traceparent(value) == (value if taken else None)


@pytest.mark.parametrize(
    "value", ["", "1", "1:", ":1", "-1:1", "1:-1", "4:1", "1:1:1", "1:" + "9" * 19, "١:1", "1:1\n", " 1:1"]
)
def test_a_position_that_was_never_given_is_refused(value: str) -> None:
    assert models.parse_position("3:17", 4) == (3, 17)
    with pytest.raises(Problem) as caught:
        models.parse_position(value, 4)
    assert caught.value.status == 422


def test_idempotency_keys() -> None:
    assert models.parse_idempotency_key([]) is None
    assert models.parse_idempotency_key(["a b~!"]) == "a b~!"
    for values in ([""], ["a", "a"], ["é"], ["a\n"], ["x" * 256], ["\x7f"]):
        with pytest.raises(Problem):
            models.parse_idempotency_key(values)
