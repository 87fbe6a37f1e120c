"""Lists: pages by keyset, cursors bound to whose list it is."""

from typing import Any

import pytest
from tests.integration.api.conftest import Api
from tests.integration.api.test_jobs import spec_named

from jobstream.schemas.commands import SubmitJob
from jobstream.schemas.new_ids import new_job_id

MOMENT = "2026-03-01T12:00:00.123456Z"


def insert(api: Api, count: int, *, queue: str, status: str = "queued", created_at: str = MOMENT) -> set[str]:
    ids = {new_job_id() for _ in range(count)}
    for job_id in ids:
        command = SubmitJob(tenant="alice", job_id=job_id, spec=spec_named("page", queue))
        api.leader.insert_job(command, status=status, created_at=created_at)
    return ids


def page(api: Api, **asked: Any) -> dict[str, Any]:
    response = api.alice.get("/api/v1/jobs", params=asked)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def test_jobs_of_one_microsecond_come_once_each_while_new_ones_arrive(api: Api) -> None:
    old = insert(api, 30, queue="same-moment")
    seen: list[str] = []
    asked: dict[str, Any] = {"queue": "same-moment", "limit": 7}
    while True:
        found = page(api, **asked)
        seen += [job["job_id"] for job in found["jobs"]]
        if found["next_cursor"] is None:
            break
        assert len(found["jobs"]) == 7
        asked["cursor"] = found["next_cursor"]
        insert(api, 3, queue="same-moment", created_at="2026-03-01T12:00:01Z")
    assert len(seen) == 30
    assert set(seen) == old


def test_newest_first_and_filters_hold_together(api: Api) -> None:
    for number, status in enumerate(["queued", "failed", "queued", "failed", "failed"]):
        insert(api, 1, queue="filtered", status=status, created_at=f"2026-04-0{number + 1}T00:00:00Z")
    insert(api, 2, queue="elsewhere", status="failed", created_at="2026-04-09T00:00:00Z")
    found = page(api, queue="filtered", status="failed", limit=2)
    assert [job["created_at"][:10] for job in found["jobs"]] == ["2026-04-05", "2026-04-04"]
    rest = page(api, queue="filtered", status="failed", limit=2, cursor=found["next_cursor"])
    assert [job["created_at"][:10] for job in rest["jobs"]] == ["2026-04-02"]
    assert rest["next_cursor"] is None
    assert {job["queue"] for job in page(api, status="failed")["jobs"]} >= {"filtered", "elsewhere"}
    job = found["jobs"][0]
    assert job["resources"] == {"cpu": 0.001, "memory_gb": 1 / 1024} and job["labels"] == {}


def test_a_cursor_of_another_list_is_refused(api: Api) -> None:
    insert(api, 5, queue="bound")
    cursor = page(api, queue="bound", limit=2)["next_cursor"]
    assert page(api, queue="bound", limit=3, cursor=cursor)["jobs"]
    wrong = [
        (api.bob, {"queue": "bound", "cursor": cursor}),
        (api.alice, {"queue": "other", "cursor": cursor}),
        (api.alice, {"queue": "bound", "status": "queued", "cursor": cursor}),
        (api.alice, {"cursor": cursor}),
        *((api.alice, {"queue": "bound", "cursor": bad}) for bad in ("x", "", "....", cursor[:-2], "é", "A" * 600)),
    ]
    for client, asked in wrong:
        response = client.get("/api/v1/jobs", params=asked)
        assert response.status_code == 400, (asked, response.text)
    assert api.alice.get("/api/v1/machines", params={"cursor": cursor}).status_code == 400


@pytest.mark.parametrize(
    "asked",
    [
        {"limit": 0},
        {"limit": 501},
        {"limit": "x"},
        {"limit": "1e400"},
        {"status": "lost"},
        {"queue": "\x00"},
        {"queue": ""},
        {"queue": "a" * 64},
        {"cursor": "A" * 601},
        {"offset": 3},
    ],
)
def test_parameters_out_of_form_are_named(api: Api, asked: dict[str, Any]) -> None:
    response = api.alice.get("/api/v1/jobs", params=asked)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == next(iter(asked))


def test_machines_show_counts_and_no_tenants_data(api: Api) -> None:
    for number in (1, 2, 3):
        api.leader.execute(
            "INSERT INTO machines VALUES (%(id)s, 's', 'b', 'up', 2500, 1536, '{\"zone\": \"eu\"}', now(), now(), 0)",
            id=f"m-{number}",
        )
    for _ in range(2):
        job_id = new_job_id()
        api.leader.insert_job(SubmitJob(tenant="bob", job_id=job_id, spec=spec_named("secret-name")), status="running")
        api.leader.execute("UPDATE jobs SET machine_id = 'm-2' WHERE job_id = %(job_id)s", job_id=job_id)
    first = api.alice.get("/api/v1/machines", params={"limit": 2}).json()
    second = api.admin.get("/api/v1/machines", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    machines = first["machines"] + second["machines"]
    assert [(machine["machine_id"], machine["running_jobs"]) for machine in machines] == [
        ("m-1", 0),
        ("m-2", 2),
        ("m-3", 0),
    ]
    assert second["next_cursor"] is None
    one = api.alice.get("/api/v1/machines/m-2")
    assert one.json() == machines[1]
    assert one.json()["resources"] == {"cpu": 2.5, "memory_gb": 1.5}
    assert "bob" not in one.text and "secret-name" not in one.text
    for unknown in ("m-9", "..%2f", "%00", "a" * 300):
        assert api.alice.get(f"/api/v1/machines/{unknown}").status_code == 404
