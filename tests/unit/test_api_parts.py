"""Cursors, keys, views, problems and the OpenAPI document."""

import base64
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from jobstream.api import cursors, keys, queries, views
from jobstream.api.app import make_app
from jobstream.api.models import NOT_YET
from jobstream.api.problems import Problem, invalid
from jobstream.runtime.config import Settings
from jobstream.schemas.new_ids import new_job_id

JOB_ID = "01a2315f-3f1f-7465-8146-244c265f048d"
SCOPE = ("jobs", "alice", "batch", None)


def test_a_cursor_brings_its_position_back_to_the_microsecond() -> None:
    job_id, moment = new_job_id(), datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)
    assert cursors.read_job(SCOPE, cursors.write_job(SCOPE, moment, job_id)) == (moment, job_id)


@pytest.mark.parametrize("scope", [("jobs", "bob", "batch", None), ("jobs", "alice", None, "batch"), ("keys", "alice")])
def test_a_cursor_belongs_to_its_list(scope: cursors.Scope) -> None:
    cursor = cursors.write_job(SCOPE, datetime.now(UTC), new_job_id())
    with pytest.raises(Problem) as caught:
        cursors.read_job(scope, cursor)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "position",
    [
        [],
        [1],
        ["a", "b"],
        [1, "x"],
        [-1, JOB_ID],
        [2**63, JOB_ID],
        [True, JOB_ID + "\n"],
        [1.5, JOB_ID],
    ],
)
def test_a_made_up_cursor_with_a_right_tag_still_cannot_break_a_query(position: list[Any]) -> None:
    with pytest.raises(Problem):
        cursors.read_job(SCOPE, cursors.write(SCOPE, position))


@pytest.mark.parametrize("cursor", ["", "x", "é", "A" * 600, "=", "a b", base64.b64encode(b"\x00" * 20).decode()])
def test_garbage_is_no_cursor(cursor: str) -> None:
    for read in (cursors.read_job, cursors.read_name):
        with pytest.raises(Problem) as caught:
            read(SCOPE, cursor)
        assert caught.value.status == 400


def test_keys_are_long_unlike_and_of_one_form() -> None:
    made = [keys.new_key() for _ in range(200)]
    assert len({key.key for key in made}) == len({key.key_id for key in made}) == 200
    for key in made:
        match = keys.KEY_FORM.fullmatch(key.key)
        assert match and match[1] == key.key_id and len(key.digest) == 32
        assert key.digest == keys.digest_of_key(key.key)
    assert made[0].key not in repr(made[0].digest)


def test_a_new_key_does_not_show_in_a_log_of_it() -> None:
    made = keys.new_key()
    assert made.key not in repr(made)


@pytest.mark.parametrize(
    ("row", "refusal", "answered"),
    [
        ({"status": "queued", "cancel_requested": False}, None, False),
        ({"status": "running", "cancel_requested": True}, None, True),
        ({"status": "completed", "cancel_requested": False}, None, True),
        ({"status": "queued", "cancel_requested": False}, {"code": "unknown_job"}, True),
        (None, None, False),
    ],
)
def test_when_a_cancel_is_answered(row: Any, refusal: Any, answered: bool) -> None:
    assert views.cancel_answered(row, refusal) is answered


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("conflict", 422),
        ("quarantined", 422),
        ("tenant_not_granted", 403),
        ("id_from_future", 503),
        ("id_too_old", 503),
    ],
)
def test_what_a_refusal_means_to_a_client(code: str, status: int) -> None:
    assert views.submission_refused({"code": code, "detail": "x"}).status == status


def test_amounts_and_times_as_people_write_them() -> None:
    assert views.resources({"cpu_millis": 70, "memory_mib": 1_536}) == {"cpu": 0.07, "memory_gb": 1.5}
    assert isinstance(views.decimal(2_000, 1_000), int)
    assert views.moment(datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)) == "2026-01-02T03:04:05.678Z"
    assert views.moment(None) is None


def test_a_problem_names_at_most_a_few_fields_in_its_sentence() -> None:
    body = invalid([(f"f{number}", "bad") for number in range(50)]).body()
    assert body["detail"] == "f0: bad; f1: bad; f2: bad; and 47 more"
    assert len(body["errors"]) == 20 and body["status"] == 422


def test_statements_take_values_as_parameters_alone() -> None:
    texts = [
        text for name, text in vars(queries).items() if name[0] != "_" and isinstance(text, str) and "SELECT" in text
    ]
    texts += [queries.jobs(queue=True, status=True, after=True)]
    assert len(texts) > 10
    for text in texts:
        assert not re.search(r"(?<!%)%s|\{(?!private\})", text), text


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = Settings(logs_url=tmp_path_factory.mktemp("logs").as_uri(), unsafe_replication=True)
    return make_app(settings).openapi()


def test_the_document_states_limits_examples_and_refusals(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    job = schemas["JobRequest"]
    assert job["additionalProperties"] is False and job["examples"]
    assert not set(NOT_YET) & set(job["properties"])
    assert job["properties"]["name"]["maxLength"] == 200
    assert job["properties"]["env"]["maxProperties"] == 256
    assert schemas["ResourcesRequest"]["properties"]["cpu"]["maximum"] == 1_000
    limit = next(item for item in document["paths"]["/api/v1/jobs"]["get"]["parameters"] if item["name"] == "limit")
    assert (limit["schema"]["minimum"], limit["schema"]["maximum"]) == (1, 500)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if path.startswith("/api/"):
                told = {"401", "403", "422", "500", "503"}
                assert told <= set(operation["responses"]), (method, path)
                assert operation["security"], (method, path)
                for status in told:
                    assert "application/problem+json" in operation["responses"][status]["content"]
    submit = document["paths"]["/api/v1/jobs"]["post"]
    assert {"201", "202", "400", "408", "413", "415"} <= set(submit["responses"])
    assert "Idempotency-Key".lower() in {item["name"].lower() for item in submit["parameters"]}


def test_every_reference_of_the_document_is_there(document: dict[str, Any]) -> None:
    wanted = set(re.findall(r"#/components/schemas/([A-Za-z]+)", repr(document)))
    assert wanted <= set(document["components"]["schemas"])
    assert "HTTPValidationError" not in document["components"]["schemas"]
