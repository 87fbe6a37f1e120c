"""The API over HTTP. What may safely be sent again is sent again for a few seconds, then the API counts as unreachable."""

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

import httpx

from jobstream.cli.connection import Endpoint
from jobstream.cli.exit_codes import has_ended
from jobstream.runtime.errors import JobstreamError, Unavailable

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0  # the API answers or says 503 well before
FOLLOW_TIMEOUT_S: Final = None  # a job may be silent for days
RETRIES_MAX: Final = 6  # 0.1 + 0.2 + … s: about 6 s, an API that is being restarted is back by then
BACKOFF_FIRST_S: Final = 0.1
WAIT_FIRST_S: Final = 0.02  # a short job ends within tens of ms
WAIT_MOST_S: Final = 1.0
WAIT_GROWTH: Final = 1.5
PENDING_MOST_S: Final = 60.0  # a projector that is restarted shows what Kafka has within seconds
PAGE_ITEMS: Final = 100
BUSY: Final = frozenset((429, 502, 503, 504))  # refused before anything was done, or worth asking again


class ApiError(JobstreamError):
    """The API refused a request; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """A connection to the API for one command. Use it as a context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        self._http = httpx.Client(
            base_url=f"{endpoint.url}/api/v1",
            headers={"Authorization": f"Bearer {endpoint.key}", "User-Agent": "jobstream-cli"},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,  # a proxy from the environment must not see keys for loopback
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def request(self, method: str, path: str, *, repeatable: bool = True, **more: Any) -> Any:
        """One request, its JSON answer. Not `repeatable`: sent again only where it cannot have arrived."""
        response = self._tried(lambda: self._http.request(method, path, **more), repeatable=repeatable)
        return response.json() if response.content else None

    def submit(self, body: Mapping[str, Any], idempotency_key: str | None) -> dict[str, Any]:
        """Submit a job. A key of our own makes sending it again safe; the job is the same one."""
        key = idempotency_key or f"cli-{uuid.uuid4()}"
        accepted: dict[str, Any] = self.request("POST", "/jobs", json=body, headers={"Idempotency-Key": key})
        return accepted

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.request("GET", job_path(job_id))
        return found

    def cancel(self, job_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.request("POST", f"{job_path(job_id)}/cancel")
        return answer

    def jobs(self, *, queue: str | None, status: str | None, limit: int | None) -> Iterator[dict[str, Any]]:
        """Jobs, newest first, until there are no more or `limit` is reached."""
        return self.items("/jobs", "jobs", limit, queue=queue, status=status)

    def items(self, path: str, field: str, limit: int | None = None, **query: str | None) -> Iterator[dict[str, Any]]:
        """What a list holds, page by page."""
        given = {name: value for name, value in query.items() if value is not None}
        cursor: dict[str, str] = {}
        while limit is None or limit > 0:
            size = PAGE_ITEMS if limit is None else min(PAGE_ITEMS, limit)
            page = self.request("GET", path, params=given | cursor | {"limit": str(size)})
            yield from page[field]
            if page["next_cursor"] is None:
                return
            cursor = {"cursor": page["next_cursor"]}
            limit = None if limit is None else limit - len(page[field])

    def wait(self, job_id: str, timeout_s: float | None = None, *, pending: bool = False) -> dict[str, Any] | None:
        """The job when it has ended; None when the time is over.

        `pending`: Kafka has it (202), but the projection did not show it yet, so that a 404 means "not yet" for a while.
        """
        began, pause_s = time.monotonic(), WAIT_FIRST_S
        while True:
            try:
                if has_ended(job := self.job(job_id)):
                    return job
                pending = False
            except ApiError as error:
                if error.status != 404 or not pending or time.monotonic() - began > PENDING_MOST_S:
                    raise
            left_s = pause_s if timeout_s is None else began + timeout_s - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * WAIT_GROWTH, WAIT_MOST_S)

    def logs(self, job_id: str, *, attempt: int | None, follow: bool) -> Iterator[bytes]:
        """Output as it was written. A connection that breaks is opened again, without what came already."""
        path = f"{job_path(job_id)}/logs"
        # Named from the start: what is skipped after a lost connection must be of the same attempt.
        attempt = attempt or self.job(job_id)["attempt"]
        query = {"follow": "true" if follow else "false"} | ({"attempt": str(attempt)} if attempt else {})
        received, failures = 0, 0
        while True:
            skip = received
            try:
                with self._stream(path, query) as chunks:
                    for chunk in chunks:
                        fresh = chunk[skip:]
                        skip -= len(chunk) - len(fresh)
                        received += len(fresh)
                        failures = failures if not fresh else 0
                        if fresh:
                            yield fresh
                return
            except httpx.TransportError as error:
                failures += 1
                if received:
                    query.setdefault("attempt", "1")  # there was none when we began, so that it was the first
                if failures > RETRIES_MAX:
                    raise self._unreachable(error) from None
                time.sleep(BACKOFF_FIRST_S * 2 ** (failures - 1))

    @contextmanager
    def _stream(self, path: str, query: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=FOLLOW_TIMEOUT_S)
        request = self._http.build_request("GET", path, params=query, timeout=timeout)
        response = self._tried(lambda: self._http.send(request, stream=True))
        try:
            yield response.iter_bytes()
        finally:
            response.close()

    def _tried(self, send: Callable[[], httpx.Response], *, repeatable: bool = True) -> httpx.Response:
        pause_s = BACKOFF_FIRST_S
        for left in range(RETRIES_MAX, -1, -1):
            try:
                response = send()
            except httpx.TransportError as error:
                if not left or not (repeatable or isinstance(error, httpx.ConnectError)):
                    raise self._unreachable(error) from None
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise Unavailable(f"{self._url} is no address of an API: {error}") from None
            else:
                if response.is_success:
                    return response
                response.read()
                if response.status_code not in BUSY or not left or not repeatable:
                    raise ApiError(response.status_code, told(response))
            time.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the last try either returns or raises")

    def _unreachable(self, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        return Unavailable(f"the API at {self._url} does not answer ({reason}); is it running? (`jobstream status`)")


def job_path(job_id: str) -> str:
    """Raises JobstreamError on what cannot be an id, so that nothing leaves its place in the path."""
    if not re.fullmatch(r"[0-9a-f-]{36}", job_id):
        raise JobstreamError(
            f"there is no job {job_id[:64]!r}: an id has 36 characters, as `jobstream submit` prints it"
        )
    return f"/jobs/{job_id}"


def told(response: httpx.Response) -> str:
    """The problem details (RFC 9457) of a refusal as one sentence; fields that are wrong come with their names."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return f"the API answered {response.status_code}, which is not one of jobstream's own answers"
    sentence = str(problem.get("detail") or problem.get("title") or f"status {response.status_code}")
    faults = [fault for fault in problem.get("errors") or () if isinstance(fault, dict)]
    named = "; ".join(f"{fault.get('field')}: {fault.get('message')}" for fault in faults)
    return f"{sentence}: {named}" if named and named not in sentence else sentence
