"""Kafka or Postgres away, and stopping: clear answers, bounded waits, nothing lost."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from tests.integration.api.conftest import Api, client, served
from tests.integration.api.test_jobs import BODY, submitted
from tests.integration.api.test_logs import path, started

from jobstream.runtime.config import Settings
from jobstream.runtime.postgres import connect


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_a_healthy_api_says_so_and_describes_itself(api: Api) -> None:
    assert httpx.get(f"{api.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{api.url}/readyz").json() == {"status": "ok", "checks": {"kafka": "ok", "postgres": "ok"}}
    assert "/api/v1/jobs" in httpx.get(f"{api.url}/openapi.json").json()["paths"]
    unknown = httpx.get(f"{api.url}/api/v2/jobs")
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/problem+json")
    wrong = httpx.put(f"{api.url}/healthz")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")


def test_without_postgres_it_starts_and_answers_503(api: Api, settings: Settings) -> None:
    away = settings.model_copy(update={"postgres": SecretStr(f"postgresql://127.0.0.1:{free_port()}/none")})
    with served(away) as url, client(url, api.alice_key) as alice:
        assert httpx.get(f"{url}/healthz").status_code == 200
        ready = httpx.get(f"{url}/readyz", timeout=20)
        assert ready.status_code == 503
        assert [fault["field"] for fault in ready.json()["errors"]] == ["postgres"]
        before = api.written()
        answer = alice.post("/api/v1/jobs", json=BODY)
        assert (answer.status_code, "Postgres" in answer.json()["detail"]) == (503, True)
        assert int(answer.headers["retry-after"]) >= 1
        assert api.written() == before


def test_without_kafka_a_submission_is_unknown_and_reads_go_on(
    api: Api, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobstream.api.submit.ACK_TIMEOUT_S", 0.5)
    monkeypatch.setattr("jobstream.api.submit.FLUSH_TIMEOUT_S", 0.1)
    monkeypatch.setattr("jobstream.api.readiness.METADATA_TIMEOUT_S", 0.5)
    away = settings.model_copy(update={"kafka": f"127.0.0.1:{free_port()}"})
    with served(away) as url, client(url, api.alice_key) as alice:
        answer = alice.post("/api/v1/jobs", json=BODY)
        assert answer.status_code == 503
        assert "unknown" in answer.json()["detail"] and "Idempotency-Key" in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) >= 1
        job_id = submitted(api)["job_id"]
        assert alice.get(f"/api/v1/jobs/{job_id}").status_code == 200
        cancel = alice.post(f"/api/v1/jobs/{job_id}/cancel")
        assert (cancel.status_code, "again is safe" in cancel.json()["detail"]) == (503, True)
        ready = httpx.get(f"{url}/readyz")
        assert [fault["field"] for fault in ready.json()["errors"]] == ["kafka"]


def test_a_database_that_is_not_migrated_or_topics_that_are_missing_are_told(settings: Settings) -> None:
    bare = settings.model_copy(update={"postgres_schema": "nobody_made_it", "topic_prefix": "nobody.made."})
    with served(bare) as url, client(url, f"js_{'0' * 16}_{'A' * 43}") as alice:
        faults = {fault["field"]: fault["message"] for fault in httpx.get(f"{url}/readyz").json()["errors"]}
        assert "jobstream migrate" in faults["postgres"]
        assert "jobstream topics provision" in faults["kafka"]
        assert alice.get("/api/v1/jobs").status_code == 503


def test_connections_that_postgres_closed_are_replaced_unseen(api: Api) -> None:
    submitted(api)
    for _ in range(3):
        with connect(api.settings, autocommit=True) as connection:
            closed = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND pid <> %s AND application_name = 'jobstream' AND query LIKE '%%' AND datname = current_database() "
                "AND query ~ %s",
                [api.leader._rows.info.backend_pid, f"{api.settings.postgres_schema}|asked|api_keys|jobs AS j"],
            ).fetchone()
        assert closed is not None and closed[0] > 0
        assert api.alice.get("/api/v1/jobs").status_code == 200
        submitted(api)


def test_reading_ones_write_works_without_notifications(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.leader, "_notify", lambda connection: None)
    began = time.monotonic()
    submitted(api)
    assert time.monotonic() - began < 3


def test_a_head_without_end_is_refused(api: Api) -> None:
    host, port = "127.0.0.1", int(api.url.rpartition(":")[2])
    for head in (b"GET / HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\n"):
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.sendall(head)
            filler = b"X: y\r\n" * 10_000 if head.endswith(b"\n") else b"a" * 60_000
            answer = b""
            try:
                for _ in range(50):  # 3 MB
                    connection.sendall(filler)
            except OSError:
                answer = b"closed"
            assert answer or connection.recv(1_000).startswith(b"HTTP/1.1 400")
    assert api.alice.get("/api/v1/jobs", headers={"X": "y" * 30_000}).status_code == 200


def test_too_many_requests_at_once_are_503_and_health_is_answered(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobstream.api.app.REQUESTS_MAX", 0)
    busy = api.alice.get("/api/v1/jobs")
    assert (busy.status_code, busy.json()["type"]) == (503, "urn:jobstream:problem:busy")
    assert busy.headers["retry-after"] == "1"
    assert httpx.get(f"{api.url}/healthz").status_code == 200


def environment(settings: Settings, port: int) -> dict[str, str]:
    return os.environ | {
        "JOBSTREAM_KAFKA": settings.kafka,
        "JOBSTREAM_POSTGRES": settings.postgres.get_secret_value(),
        "JOBSTREAM_SCHEMA": settings.postgres_schema,
        "JOBSTREAM_TOPIC_PREFIX": settings.topic_prefix,
        "JOBSTREAM_TENANT_PARTITIONS": str(settings.tenant_partitions),
        "JOBSTREAM_LOGS_URL": settings.log_store_url,
        "JOBSTREAM_API_PORT": str(port),
        "JOBSTREAM_READ_OWN_WRITE_MS": "1500",
    }


def test_a_stop_finishes_submissions_and_breaks_off_streams(api: Api, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "api.log"
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobstream.api"], env=environment(api.settings, port), stderr=output
        )
    try:
        wait_until_answers(url, log)
        job_id = submitted(api)["job_id"]
        started(api, job_id)
        key = api.alice_key
        before = len(api.leader.commands)
        api.leader.held.set()
        answers: list[object] = []

        def submit() -> None:
            with client(url, key) as alice:
                answers.append(alice.post("/api/v1/jobs", json=BODY).status_code)

        def follow() -> None:
            with client(url, key) as alice:
                try:
                    alice.get(path(job_id), params={"follow": "true"})
                    answers.append("ended well")
                except httpx.RemoteProtocolError:
                    answers.append("broken off")

        threads = [threading.Thread(target=work, daemon=True) for work in (submit, follow)]
        for thread in threads:
            thread.start()
        api.leader.wait_for(before + 1)
        time.sleep(0.3)  # the follower is in its loop by now; nothing tells
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
        for thread in threads:
            thread.join(5)
        assert sorted(map(str, answers)) == ["202", "broken off"]
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait(10)


def wait_until_answers(url: str, log: Path) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail(log.read_text())


def test_an_address_in_use_is_told_without_a_stack_trace(api: Api) -> None:
    port = int(api.url.rpartition(":")[2])
    done = subprocess.run(
        [sys.executable, "-m", "jobstream.api"],
        env=environment(api.settings, port),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert f"127.0.0.1:{port}" in done.stderr and "Traceback" not in done.stderr
