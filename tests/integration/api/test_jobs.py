"""Jobs over HTTP, on the real Kafka and Postgres."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.integration.api.conftest import Api

from jobstream.schemas.commands import CancelJob, JobSpec, SubmitJob
from jobstream.schemas.ids import derive_job_id
from jobstream.schemas.new_ids import new_job_id
from jobstream.schemas.resources import Resources

BODY: dict[str, Any] = {
    "name": "count",
    "command": ["wc", "-l", "a b"],
    "resources": {"cpu": 0.07, "memory_gb": 0.1},
    "priority": "high",
    "queue": "batch",
    "timeout_seconds": 1.5,
    "env": {"TOKEN": "hidden-value"},
    "labels": {"team": "search"},
    "required_labels": {"zone": "eu"},
}
JSON = {"Content-Type": "application/json"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def submitted(api: Api, client: httpx.Client | None = None, **changes: Any) -> dict[str, Any]:
    response = (client or api.alice).post("/api/v1/jobs", json=BODY | changes)
    assert response.status_code == 201, response.text
    body: dict[str, Any] = response.json()
    return body


def set_status(api: Api, job_id: str, status: str) -> None:
    api.leader.execute(
        "UPDATE jobs SET status = %(status)s, last_offset = last_offset + 1 WHERE job_id = %(job_id)s",
        status=status,
        job_id=job_id,
    )


def test_a_submitted_job_is_an_event_and_is_seen_by_its_next_read(api: Api) -> None:
    before = len(api.leader.commands)
    response = api.alice.post("/api/v1/jobs", json=BODY, headers={"traceparent": TRACE})
    assert response.status_code == 201
    job = response.json()
    assert (job["status"], job["name"], job["priority"]) == ("queued", "count", "high")
    assert response.headers["location"] == f"/api/v1/jobs/{job['job_id']}"

    envelope, command = api.leader.wait_for(before + 1)[before]
    assert isinstance(command, SubmitJob)
    assert (command.tenant, command.job_id, command.idempotency_key) == ("alice", job["job_id"], None)
    assert command.spec.resources == Resources(cpu_millis=70, memory_mib=103)
    assert command.spec.timeout_ms == 1_500
    assert command.spec.env == {"TOKEN": "hidden-value"}
    assert envelope.traceparent == TRACE

    read = api.alice.get(response.headers["location"], headers=position_of(response))
    assert read.status_code == 503, "nobody has moved the offsets of the projection yet"
    partition, offset = response.headers["jobstream-position"].split(":")
    api.leader.execute(
        "INSERT INTO projection_offsets (topic, partition, next_offset, next_sequence) VALUES "
        "('lifecycle', %(partition)s, %(offset)s, 0) ON CONFLICT (topic, partition) DO UPDATE SET next_offset = %(offset)s",
        partition=partition,
        offset=offset,
    )
    read = api.alice.get(response.headers["location"], headers=position_of(response))
    assert read.status_code == 200
    whole = read.json()
    assert whole["resources"] == {"cpu": 0.07, "memory_gb": 103 / 1024}
    assert whole["command"] == ["wc", "-l", "a b"]
    assert (whole["timeout_seconds"], whole["env_names"], whole["attempts"]) == (1.5, ["TOKEN"], [])
    assert (whole["labels"], whole["required_labels"]) == ({"team": "search"}, {"zone": "eu"})
    assert "hidden-value" not in read.text
    assert whole["logs_url"] == f"{api.url}/api/v1/jobs/{job['job_id']}/logs"
    assert whole["created_at"].endswith("Z")


def test_urls_name_the_host_that_was_asked_and_no_nonsense(api: Api) -> None:
    for host, told in (("jobs.example:8443", "http://jobs.example:8443"), ("a b/<x>", api.url), ("", api.url)):
        answer = api.alice.post("/api/v1/jobs", json=BODY, headers={"Host": host})
        assert answer.json()["logs_url"].startswith(f"{told}/api/v1/jobs/"), host


def position_of(response: httpx.Response) -> dict[str, str]:
    return {"Jobstream-Position": response.headers["jobstream-position"]}


def test_a_read_waits_for_its_position(api: Api) -> None:
    job = submitted(api)
    partition = api.alice.get(f"/api/v1/jobs/{job['job_id']}").headers["jobstream-position"].split(":")[0]
    answers: list[int] = []
    headers = {"Jobstream-Position": f"{partition}:1000000"}
    reading = threading.Thread(
        target=lambda: answers.append(api.alice.get("/api/v1/jobs", headers=headers).status_code)
    )
    reading.start()
    reading.join(0.3)
    assert reading.is_alive(), "it did not wait"
    api.leader.execute(
        "INSERT INTO projection_offsets (topic, partition, next_offset, next_sequence) VALUES "
        "('lifecycle', %(partition)s, 1000000, 0) ON CONFLICT (topic, partition) DO UPDATE SET next_offset = 1000000",
        partition=partition,
    )
    reading.join(2)
    assert answers == [200]


def test_a_job_that_is_not_shown_in_time_is_202_with_its_location(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobstream.api.projection._Waiting.within", hurried)
    api.leader.held.set()
    response = api.alice.post("/api/v1/jobs", json=BODY)
    assert response.status_code == 202
    assert response.json()["status"] == "submitted"
    assert api.alice.get(response.headers["location"]).status_code == 404
    api.leader.held.clear()
    shown = api.alice.get(response.headers["location"])
    for _ in range(100):
        if shown.status_code == 200:
            break
        shown = api.alice.get(response.headers["location"])
    assert shown.json()["job_id"] == response.json()["job_id"]


async def hurried(waiting: Any, seconds: float) -> None:
    """Stands in for a wait whose time is over."""


def test_the_same_key_and_body_make_one_job(api: Api) -> None:
    headers = {"Idempotency-Key": "nightly 2026-01-31"}
    first = api.alice.post("/api/v1/jobs", json=BODY, headers=headers)
    assert first.status_code == 201
    assert first.json()["job_id"] == derive_job_id("alice", "nightly 2026-01-31")
    assert "idempotent-replayed" not in first.headers
    set_status(api, first.json()["job_id"], "running")
    before = api.written()
    respelled = BODY | {"timeout_seconds": 1.500, "resources": {"cpu": 0.07, "memory_gb": 0.10}}
    again = api.alice.post("/api/v1/jobs", json=respelled, headers=headers)
    assert again.status_code == 201
    assert again.json() == first.json() | {"status": "running"}
    assert again.headers["idempotent-replayed"] == "true"
    assert api.written() == before


def test_another_body_under_a_key_is_refused_without_an_event(api: Api) -> None:
    headers = {"Idempotency-Key": "k-1"}
    assert api.alice.post("/api/v1/jobs", json=BODY, headers=headers).status_code == 201
    before = api.written()
    other = api.alice.post("/api/v1/jobs", json=BODY | {"name": "other"}, headers=headers)
    assert other.status_code == 422
    assert other.json()["errors"][0]["field"] == "Idempotency-Key"
    assert api.written() == before
    assert api.bob.post("/api/v1/jobs", json=BODY | {"name": "other"}, headers=headers).status_code == 201


def test_two_bodies_that_race_under_one_key_make_one_job(api: Api) -> None:
    for number in range(5):
        headers = {"Idempotency-Key": f"race-{number}"}
        api.leader.held.set()  # both are in Kafka before either is answered
        before = len(api.leader.commands)
        with ThreadPoolExecutor(4) as pool:
            answers = [
                pool.submit(api.alice.post, "/api/v1/jobs", json=BODY | {"name": name}, headers=headers)
                for name in ("a", "b", "a", "b")
            ]
            api.leader.wait_for(before + 4)
            api.leader.held.clear()
            statuses = [answer.result().status_code for answer in answers]
        assert sorted(statuses) == [201, 201, 422, 422]
        assert statuses[0] == statuses[2] and statuses[1] == statuses[3]
        rows = api.leader.execute("SELECT count(*) FROM jobs WHERE idempotency_key = %(key)s", key=f"race-{number}")
        assert rows == [(1,)]


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\xe9", "tab\there"])
def test_a_key_out_of_form_is_refused(api: Api, key: str) -> None:
    before = api.written()
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    response = api.alice.post("/api/v1/jobs", json=BODY, headers=headers)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"].lower() == "idempotency-key"
    twice = [(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"b")]
    assert api.alice.post("/api/v1/jobs", json=BODY, headers=twice).status_code == 422
    assert api.written() == before


BAD_CPU = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "1e308",
    "-1",
    "-0.0",
    "0",
    '"1"',
    "true",
    "null",
    "9" * 5_000,
    "1001",
    "[1]",
]
BAD_BODIES = [
    *(
        f'{{"name": "a", "command": ["true"], "resources": {{"cpu": {cpu}, "memory_gb": 1}}}}'.encode()
        for cpu in BAD_CPU
    ),
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"name": "a", "name": "b", "command": ["true"], "resources": {"cpu": 1, "memory_gb": 1}}',
    b'{"name": "a\\u0000", "command": ["true"], "resources": {"cpu": 1, "memory_gb": 1}}',
    b'{"name": "a", "command": ["\\u0000"], "resources": {"cpu": 1, "memory_gb": 1}}',
    b'{"name": "a", "command": ["true"], "env": {"A": "\\u0000"}, "resources": {"cpu": 1, "memory_gb": 1}}',
    b'{"name": "\\ud800", "command": ["true"], "resources": {"cpu": 1, "memory_gb": 1}}',
    b'{"name": "a", "command": ["\\udc00x"], "resources": {"cpu": 1, "memory_gb": 1}}',
    b'{"name": "\xed\xa0\x80", "command": ["true"], "resources": {"cpu": 1, "memory_gb": 1}}',
    b'{"name": "\xff", "command": ["true"], "resources": {"cpu": 1, "memory_gb": 1}}',
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(bytes(body[:90])))
def test_a_body_that_cannot_be_used_makes_no_event(api: Api, body: bytes) -> None:
    before = api.written()
    response = api.alice.post("/api/v1/jobs", content=body, headers=JSON)
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert set(response.json()) >= {"type", "title", "status", "detail"}
    assert api.written() == before


@pytest.mark.parametrize("field", ["depends_on", "retry_policy", "locality", "schedule", "time_zone", "colour"])
def test_a_field_that_is_not_honoured_is_refused_by_name(api: Api, field: str) -> None:
    before = api.written()
    response = api.alice.post("/api/v1/jobs", json=BODY | {field: None})
    assert response.status_code == 422
    fault = {"field": field, "message": "unknown field" if field == "colour" else "is not supported yet"}
    assert response.json()["errors"] == [fault]
    assert api.written() == before


def test_a_body_over_the_limit_is_413_however_it_is_sent(api: Api) -> None:
    before = api.written()
    big = b'{"name": "' + b"a" * 1024 * 1024 + b'"}'
    declared = api.alice.post("/api/v1/jobs", content=big, headers=JSON)
    chunked = api.alice.post("/api/v1/jobs", content=iter([big[:700_000], big[700_000:]]), headers=JSON)
    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert api.written() == before


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_another_content_type_is_415(api: Api, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    response = api.alice.post("/api/v1/jobs", content=b"{}", headers=headers)
    assert response.status_code == 415
    fine = api.alice.post("/api/v1/jobs", json=BODY, headers={"Content-Type": "application/json; charset=utf-8"})
    assert fine.status_code == 201


def test_tenants_see_only_their_own(api: Api) -> None:
    job_id = submitted(api)["job_id"]
    assert api.alice.get(f"/api/v1/jobs/{job_id}").status_code == 200
    before = api.written()
    for response in (
        api.bob.get(f"/api/v1/jobs/{job_id}"),
        api.bob.get(f"/api/v1/jobs/{job_id}/logs"),
        api.bob.post(f"/api/v1/jobs/{job_id}/cancel"),
    ):
        assert response.status_code == 404
        unknown = api.bob.get(f"/api/v1/jobs/{new_job_id()}").json()
        assert response.json()["type"] == unknown["type"]
    assert job_id not in api.bob.get("/api/v1/jobs").text
    assert api.written() == before


ODD_IDS = [
    "x",
    "..%2f..%2fetc%2fpasswd",
    "../../x",
    "%00",
    "%ff",
    "a" * 300,
    "0" * 36,
    "01A2315F-3F1F-7465-8146-244C265F048D",
]


@pytest.mark.parametrize("job_id", ODD_IDS)
def test_ids_out_of_form_are_unknown(api: Api, job_id: str) -> None:
    for response in (
        api.alice.get(f"/api/v1/jobs/{job_id}"),
        api.alice.get(f"/api/v1/jobs/{job_id}/logs"),
        api.alice.post(f"/api/v1/jobs/{job_id}/cancel"),
    ):
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"


def test_a_queued_job_is_cancelled_at_once_and_twice_is_once(api: Api) -> None:
    job_id = submitted(api)["job_id"]
    before = api.written()
    first = api.alice.post(f"/api/v1/jobs/{job_id}/cancel", json={"reason": "not needed"})
    assert (first.status_code, first.json()) == (200, {"job_id": job_id, "status": "cancelled"})
    command = api.leader.commands[-1][1]
    assert isinstance(command, CancelJob) and command.reason == "not needed"
    second = api.alice.post(f"/api/v1/jobs/{job_id}/cancel")
    assert (second.status_code, second.json()) == (200, first.json())
    assert api.written() == before + 1


def test_a_running_job_is_asked_to_end(api: Api) -> None:
    job_id = submitted(api)["job_id"]
    set_status(api, job_id, "running")
    for _ in range(2):
        answer = api.alice.post(f"/api/v1/jobs/{job_id}/cancel")
        assert answer.status_code == 202
        assert answer.json() == {"job_id": job_id, "status": "running", "cancel_requested": True}
    assert sum(command.job_id == job_id for _, command in api.leader.commands) == 2  # submit, cancel


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_job_that_has_ended_cannot_be_cancelled(api: Api, status: str) -> None:
    job_id = submitted(api)["job_id"]
    set_status(api, job_id, status)
    before = api.written()
    answer = api.alice.post(f"/api/v1/jobs/{job_id}/cancel")
    assert answer.status_code == 409
    assert status in answer.json()["detail"]
    assert api.written() == before


def test_a_job_that_ends_while_its_cancel_is_on_the_way_is_409(api: Api) -> None:
    job_id = submitted(api)["job_id"]
    set_status(api, job_id, "running")
    api.leader.on_cancel = lambda command: set_status(api, job_id, "completed")
    assert api.alice.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 409


@pytest.mark.parametrize(("body", "status"), [(b"[]", 400), (b'{"reason": 1}', 422), (b'{"why": "x"}', 422)])
def test_a_cancel_with_a_wrong_body_makes_no_event(api: Api, body: bytes, status: int) -> None:
    job_id = submitted(api)["job_id"]
    before = api.written()
    assert api.alice.post(f"/api/v1/jobs/{job_id}/cancel", content=body, headers=JSON).status_code == status
    assert api.alice.post(f"/api/v1/jobs/{job_id}/cancel", content=b"{}").status_code == 415
    assert api.written() == before


def test_attempts_are_shown_with_their_evidence(api: Api) -> None:
    job_id = submitted(api)["job_id"]
    api.leader.execute(
        """
        INSERT INTO attempts (tenant, job_id, attempt, token, machine_id, session, assigned_at, started_at, ended_at,
            outcome, exit_code, detail, evidence)
        VALUES ('alice', %(job_id)s, 1, 65536, 'm-1', 's', '2026-01-01T00:00:00.1Z', NULL, '2026-01-01T00:00:02Z',
            'lost', NULL, 'gone', '[{"token": 65536}]'),
            ('alice', %(job_id)s, 2, 65537, 'm-2', 's', '2026-01-01T00:00:03Z', '2026-01-01T00:00:04.0567Z', NULL,
            NULL, NULL, NULL, NULL)
        """,
        job_id=job_id,
    )
    first, second = api.alice.get(f"/api/v1/jobs/{job_id}").json()["attempts"]
    assert (first["attempt"], first["outcome"], first["machine_id"]) == (1, "lost", "m-1")
    assert (first["assigned_at"], first["started_at"]) == ("2026-01-01T00:00:00.100Z", None)
    assert (first["ended_at"], first["evidence"]) == ("2026-01-01T00:00:02.000Z", [{"token": 65536}])
    assert (second["attempt"], second["outcome"], second["started_at"]) == (2, None, "2026-01-01T00:00:04.056Z")
    assert second["evidence"] == []


def spec_named(name: str, queue: str = "pages") -> JobSpec:
    return JobSpec(name=name, command="true", resources=Resources(cpu_millis=1, memory_mib=1), queue=queue)
