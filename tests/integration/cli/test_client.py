"""The client against a server that misbehaves: what is sent again, what is not, and what a person is told."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from jobstream.cli import client as client_module
from jobstream.cli.client import ApiError, Client
from jobstream.cli.connection import Endpoint
from jobstream.runtime.errors import JobstreamError, Unavailable

JOB = "01a23165-95a6-732a-b323-a99228ce81e4"

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers requests with what a test has laid out, in order; the last answer stays."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.seen.append((self.command, self.path, dict(self.headers), body))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                answer(self)

            do_GET = do_POST = _answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(client_module, "BACKOFF_FIRST_S", 0.001)
    with Client(Endpoint(url=server.url, key="the-key")) as made:
        yield made


def answer(status: int, content: Any) -> Answer:
    def send(handler: BaseHTTPRequestHandler) -> None:
        body = json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return send


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def cut(whole: bytes, sent: int) -> Answer:
    """Promise the whole, send a part of it and hang up."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(whole)))
        handler.end_headers()
        handler.wfile.write(whole[:sent])
        handler.close_connection = True

    return send


BUSY = answer(503, {"title": "Unavailable", "status": 503, "detail": "Kafka does not answer"})


def test_a_submission_that_is_sent_again_carries_the_same_idempotency_key(server: Server, client: Client) -> None:
    server.answers = [hang_up, BUSY, answer(201, {"job_id": "j", "status": "queued"})]
    assert client.submit({"name": "x"}, None)["job_id"] == "j"
    keys = [headers["Idempotency-Key"] for _, _, headers, _ in server.seen]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert server.seen[0][2]["Authorization"] == "Bearer the-key"


def test_two_submissions_are_two_jobs(server: Server, client: Client) -> None:
    server.answers = [answer(201, {"job_id": "j", "status": "queued"})]
    client.submit({"name": "x"}, None)
    client.submit({"name": "x"}, None)
    first, second = (headers["Idempotency-Key"] for _, _, headers, _ in server.seen)
    assert first != second


def test_a_refusal_is_not_repeated_and_names_the_field(server: Server, client: Client) -> None:
    problem = {
        "detail": "the request is not valid",
        "errors": [{"field": "resources.cpu", "message": "must be above 0"}],
    }
    server.answers = [answer(422, problem)]
    with pytest.raises(ApiError, match=r"resources\.cpu: must be above 0") as caught:
        client.submit({"name": "x"}, "my-key")
    assert caught.value.status == 422
    assert [headers["Idempotency-Key"] for _, _, headers, _ in server.seen] == ["my-key"]


def test_an_api_that_stays_busy_is_given_up_in_its_own_words(server: Server, client: Client) -> None:
    server.answers = [BUSY]
    with pytest.raises(ApiError, match="Kafka does not answer"):
        client.job(JOB)
    assert len(server.seen) == client_module.RETRIES_MAX + 1


def test_an_api_that_is_not_there_is_said_to_be_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_FIRST_S", 0.001)
    with (
        Client(Endpoint(url="http://127.0.0.1:9", key="k")) as client,
        pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9 does not answer"),
    ):
        client.job(JOB)


def test_what_may_have_arrived_is_not_sent_again_where_twice_is_not_once(server: Server, client: Client) -> None:
    server.answers = [hang_up]
    with pytest.raises(Unavailable):
        client.request("POST", "/tenants/t/keys", repeatable=False, json={"name": "k"})
    assert len(server.seen) == 1


def test_an_answer_of_something_else_than_the_api_is_told_apart(server: Server, client: Client) -> None:
    def page(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(404)
        handler.send_header("Content-Length", "6")
        handler.end_headers()
        handler.wfile.write(b"<html>")

    server.answers = [page]
    with pytest.raises(ApiError, match="404, which is not one of jobstream's own"):
        client.job(JOB)


@pytest.mark.parametrize("job_id", ["", "..", "../../healthz?x=", "x" * 36, f"{JOB}/cancel", f"{JOB}\n"])
def test_what_is_no_id_is_never_sent(server: Server, client: Client, job_id: str) -> None:
    with pytest.raises(JobstreamError, match="there is no job"):
        client.job(job_id)
    assert server.seen == []


def test_pages_are_followed_until_the_limit(server: Server, client: Client) -> None:
    server.answers = [
        answer(200, {"jobs": [{"job_id": str(n)} for n in range(100)], "next_cursor": "c1"}),
        answer(200, {"jobs": [{"job_id": "100"}], "next_cursor": "c2"}),
    ]
    assert len(list(client.jobs(queue="q", status=None, limit=101))) == 101
    assert [path for _, path, _, _ in server.seen] == [
        "/api/v1/jobs?queue=q&limit=100",
        "/api/v1/jobs?queue=q&cursor=c1&limit=1",
    ]


def test_logs_go_on_after_a_lost_connection_without_repeating_a_byte(server: Server, client: Client) -> None:
    whole = bytes(range(256)) * 40
    server.answers = [cut(whole, 1000), cut(whole, 300), cut(whole, 5001), cut(whole, len(whole))]
    assert b"".join(client.logs(JOB, attempt=2, follow=True)) == whole
    assert server.seen[0][1] == f"/api/v1/jobs/{JOB}/logs?follow=true&attempt=2"


def test_logs_of_a_job_that_was_queued_stay_with_its_first_attempt(server: Server, client: Client) -> None:
    server.answers = [answer(200, {"attempt": 0}), cut(b"abcdef", 2), cut(b"abcdef", 6)]
    assert b"".join(client.logs(JOB, attempt=None, follow=True)) == b"abcdef"
    paths = [path for _, path, _, _ in server.seen]
    assert paths[1:] == [f"/api/v1/jobs/{JOB}/logs?follow=true", f"/api/v1/jobs/{JOB}/logs?follow=true&attempt=1"]


def test_logs_that_break_at_the_same_byte_again_and_again_are_given_up(server: Server, client: Client) -> None:
    server.answers = [cut(b"x" * 100, 10)]
    received = bytearray()
    with pytest.raises(Unavailable):
        for chunk in client.logs(JOB, attempt=1, follow=False):
            received += chunk
    assert received == b"x" * 10
    assert len(server.seen) == client_module.RETRIES_MAX + 1


def test_waiting_ends_with_the_job_or_with_the_time(server: Server, client: Client) -> None:
    server.answers = [answer(200, {"status": "running"}), answer(200, {"status": "completed"})]
    assert client.wait(JOB) == {"status": "completed"}
    server.answers = [answer(200, {"status": "running"})]
    assert client.wait(JOB, timeout_s=0.05) is None


def test_a_job_that_kafka_has_is_waited_for_until_it_is_shown(server: Server, client: Client) -> None:
    unknown = answer(404, {"detail": "there is no job"})
    server.answers = [unknown, unknown, answer(200, {"status": "running"}), answer(200, {"status": "completed"})]
    assert client.wait(JOB, pending=True) == {"status": "completed"}
    server.answers = [unknown]
    with pytest.raises(ApiError, match="there is no job"):
        client.wait(JOB)


def test_a_job_that_was_shown_and_is_gone_is_an_error(server: Server, client: Client) -> None:
    server.answers = [answer(200, {"status": "running"}), answer(404, {"detail": "there is no job"})]
    with pytest.raises(ApiError, match="there is no job"):
        client.wait(JOB, pending=True)
