"""Output over HTTP: chunks of the real log store, as they come."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.integration.api.conftest import Api, client
from tests.integration.api.test_jobs import set_status, submitted

from jobstream.runtime.log_store import CHUNK_BYTES_MAX, AttemptLog, LogEnd, LogStore


def started(api: Api, job_id: str, attempt: int = 1, token: int = 65_536) -> AttemptLog:
    api.leader.execute(
        "INSERT INTO attempts (tenant, job_id, attempt, token, machine_id, session, assigned_at) "
        "VALUES ('alice', %(job_id)s, %(attempt)s, %(token)s, 'm-1', 's', now())",
        job_id=job_id,
        attempt=attempt,
        token=token,
    )
    return AttemptLog(tenant="alice", job_id=job_id, attempt=attempt, token=token)


def ended(api: Api, log: AttemptLog) -> None:
    api.leader.execute(
        "UPDATE attempts SET ended_at = now() WHERE job_id = %(job_id)s AND attempt = %(attempt)s",
        job_id=log.job_id,
        attempt=log.attempt,
    )


def path(job_id: str) -> str:
    return f"/api/v1/jobs/{job_id}/logs"


@contextmanager
def following(api: Api, job_id: str, **asked: str) -> Iterator["queue.Queue[bytes | None]"]:
    """What comes in, piece by piece; None is a good end, b"" a connection that was broken off."""
    pieces: queue.Queue[bytes | None] = queue.Queue()
    stop = threading.Event()

    def read() -> None:
        try:
            with api.alice.stream("GET", path(job_id), params={"follow": "true"} | asked, timeout=20) as response:
                assert response.status_code == 200, response.read()
                for piece in response.iter_bytes():
                    pieces.put(piece)
                    if stop.is_set():
                        return
            pieces.put(None)
        except httpx.RemoteProtocolError:
            pieces.put(b"")
        except httpx.ReadError:
            pass  # the test is over

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield pieces
    finally:
        stop.set()


def test_chunks_come_in_order_and_what_is_no_text_is_replaced(api: Api) -> None:
    job_id = submitted(api)["job_id"]
    empty = api.alice.get(path(job_id))
    assert (empty.status_code, empty.text) == (200, "")
    log, store = started(api, job_id), LogStore(api.settings.log_store_url)
    euro = "€".encode()
    store.write_chunk(log, 0, b"one\n" + euro[:1])
    store.write_chunk(log, 1, euro[1:] + b"\xff\x00two")
    store.write_chunk(log, 2, b"x" * CHUNK_BYTES_MAX)
    store.write_chunk(log, 3, b"end" + euro[:2])
    answer = api.alice.get(path(job_id))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "one\n€�\x00two" + "x" * CHUNK_BYTES_MAX + "end�"


def test_an_attempt_is_chosen_and_the_newest_is_the_default(api: Api) -> None:
    job_id, store = submitted(api)["job_id"], LogStore(api.settings.log_store_url)
    for attempt in (1, 2):
        store.write_chunk(started(api, job_id, attempt, 65_536 + attempt), 0, b"attempt %d" % attempt)
    assert api.alice.get(path(job_id)).text == "attempt 2"
    assert api.alice.get(path(job_id), params={"attempt": 1}).text == "attempt 1"
    assert api.alice.get(path(job_id), params={"attempt": 3}).status_code == 404
    for wrong in ("0", "-1", "x", "../1", str(2**31), "9" * 5_000):
        assert api.alice.get(path(job_id), params={"attempt": wrong}).status_code == 422
    assert api.alice.get(path(job_id), params={"follow": "perhaps"}).status_code == 422
    assert api.alice.get(path(job_id), params={"tail": "1"}).status_code == 422


def test_following_shows_output_as_it_comes_until_its_end(api: Api) -> None:
    job_id, store = submitted(api)["job_id"], LogStore(api.settings.log_store_url)
    with following(api, job_id) as pieces:
        with pytest.raises(queue.Empty):
            pieces.get(timeout=0.3)  # it is queued: wait for its first attempt
        log = started(api, job_id)
        store.write_chunk(log, 0, b"first ")
        assert pieces.get(timeout=5) == b"first "
        store.write_chunk(log, 1, b"second")
        assert pieces.get(timeout=5) == b"second"
        store.write_chunk(log, 2, b" third")
        store.write_end(log, LogEnd(bytes=18, cut=False, chunks=3))
        assert pieces.get(timeout=5) == b" third"
        assert pieces.get(timeout=5) is None


def test_following_stays_with_its_attempt_and_ends_with_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobstream.api.output.AFTER_END_S", 0.5)
    job_id, store = submitted(api)["job_id"], LogStore(api.settings.log_store_url)
    log = started(api, job_id)
    store.write_chunk(log, 0, b"lost with its machine")
    with following(api, job_id) as pieces:
        assert pieces.get(timeout=5) == b"lost with its machine"
        ended(api, log)  # no end marker will ever come
        store.write_chunk(started(api, job_id, 2, 70_000), 0, b"another attempt")
        assert pieces.get(timeout=10) is None


def test_following_a_job_that_ended_without_an_attempt_ends(api: Api) -> None:
    job_id = submitted(api)["job_id"]
    with following(api, job_id) as pieces:
        set_status(api, job_id, "cancelled")
        assert pieces.get(timeout=5) is None


def test_a_client_that_leaves_frees_its_place(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobstream.api.routes_logs.FOLLOWERS_MAX", 1)
    job_id = submitted(api)["job_id"]
    started(api, job_id)
    asked = {"follow": "true"}
    with client(api.url, api.alice_key) as other, other.stream("GET", path(job_id), params=asked) as first:
        assert first.status_code == 200
        busy = api.alice.get(path(job_id), params=asked)
        assert (busy.status_code, busy.json()["type"]) == (503, "urn:jobstream:problem:busy")
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with api.alice.stream("GET", path(job_id), params=asked) as again:
            if again.status_code == 200:
                return
    pytest.fail("the place of the one who left was not freed")


def test_a_broken_store_is_503_before_and_broken_off_after_the_first_byte(api: Api) -> None:
    job_id, store = submitted(api)["job_id"], LogStore(api.settings.log_store_url)
    log = started(api, job_id)
    store.write_chunk(log, 0, b"whole")
    folder = Path(urlsplit(api.settings.log_store_url).path) / log.folder

    def break_reading(name: str) -> None:
        (folder / name).symlink_to(folder / name)  # an endless loop of links

    with following(api, job_id) as pieces:
        assert pieces.get(timeout=5) == b"whole"
        break_reading("00000001.log")
        assert pieces.get(timeout=5) == b""
    break_reading("end.json")
    answer = api.alice.get(path(job_id))
    assert answer.status_code == 503
    assert "log store" in answer.json()["detail"] and str(folder) not in answer.text


def test_nothing_is_read_outside_the_log_root(api: Api) -> None:
    root = Path(urlsplit(api.settings.log_store_url).path)
    (root.parent / "secret.log").write_text("secret")
    for job_id in ("..%2f..%2fsecret", "../../secret", "%2e%2e%2fsecret.log", "..%5csecret", "a" * 300):
        answer = api.alice.get(path(job_id))
        assert answer.status_code == 404 and "secret\n" not in answer.text
    assert sorted(item.name for item in root.iterdir()) == ["alice"]
