"""JSON answers, and their shapes for the OpenAPI document alone: what is sent is made by `views`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from jobstream.api.problems import MEDIA_TYPE, ProblemDetails
from jobstream.schemas.states import AttemptOutcome, JobStatus, MachineStatus, Priority

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")

Time = Annotated[str, Field(description="RFC 3339, UTC", examples=["2026-01-31T12:00:00.000Z"])]
Responses = dict[int | str, dict[str, Any]]


class ResourcesView(BaseModel):
    cpu: float
    memory_gb: float


class JobSummary(BaseModel):
    """A job in a list."""

    job_id: str
    name: str
    status: JobStatus
    queue: str
    priority: Priority
    resources: ResourcesView
    labels: dict[str, str]
    machine_id: str | None
    attempt: Annotated[int, Field(description="The newest attempt's number; 0 before the first.")]
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    exit_code: int | None
    signal: int | None
    reason: Annotated[str | None, Field(description="Why it failed or was cancelled, as a code.")]
    detail: Annotated[str | None, Field(description="The same in words.")]
    cancel_requested: bool
    logs_url: str


class AttemptView(BaseModel):
    """One execution of a job."""

    attempt: int
    outcome: Annotated[AttemptOutcome | None, Field(description="Null while it is open.")]
    machine_id: str
    exit_code: int | None
    signal: int | None
    assigned_at: Time
    started_at: Time | None
    ended_at: Time | None
    detail: str | None
    evidence: Annotated[list[Any], Field(description="Reports under a stale token, as they came.")]


class JobView(JobSummary):
    """A whole job, with its newest 1,000 attempts."""

    command: list[str] | str
    required_labels: dict[str, str]
    timeout_seconds: float | None
    env_names: Annotated[list[str], Field(description="Names alone: values may be secret.")]
    attempts: list[AttemptView]


class JobPage(BaseModel):
    jobs: list[JobSummary]
    next_cursor: Annotated[str | None, Field(description="Null on the last page.")]


class SubmittedView(BaseModel):
    """A job that was just made, or that the same Idempotency-Key made before, as it is now."""

    job_id: str
    status: JobStatus
    name: str
    queue: str
    priority: Priority
    created_at: Time
    logs_url: str


class PendingView(BaseModel):
    """Kafka has the job; the projection does not show it yet. Its Location answers 404 until then."""

    job_id: str
    status: Literal["submitted"]
    logs_url: str


class CancelledView(BaseModel):
    job_id: str
    status: Literal["cancelled"]


class CancellingView(BaseModel):
    """The agent must end the job first; it is `cancelled` when nothing of it lives any more."""

    job_id: str
    status: JobStatus
    cancel_requested: Literal[True]


class MachineView(BaseModel):
    machine_id: str
    status: MachineStatus
    resources: ResourcesView
    labels: dict[str, str]
    running_jobs: Annotated[int, Field(description="Jobs assigned to it or running on it.")]
    admitted_at: Time
    changed_at: Time


class MachinePage(BaseModel):
    machines: list[MachineView]
    next_cursor: str | None


class TenantView(BaseModel):
    tenant: str
    created_at: Time


class TenantPage(BaseModel):
    tenants: list[TenantView]
    next_cursor: str | None


class KeyView(BaseModel):
    key_id: str
    name: str
    created_at: Time
    revoked_at: Time | None


class KeyPage(BaseModel):
    keys: list[KeyView]
    next_cursor: str | None


class NewKeyView(BaseModel):
    """`api_key` is shown here and never again: a digest alone is kept."""

    key_id: str
    name: str
    created_at: Time
    api_key: str


_PROBLEMS: Final[Mapping[int, str]] = {
    400: "No JSON that can be used, or a cursor that is not of this list",
    401: "No valid API key",
    403: "Another kind of key is needed",
    404: "Unknown, or another tenant's",
    408: "The body did not arrive in time",
    409: "The state does not allow that",
    413: "The body has more than 1 MiB",
    415: "The content type is not application/json",
    422: "A field, a header or a parameter is not valid; `errors` names it",
    500: "A fault of ours",
    503: "Kafka, Postgres or the log store does not answer, or there are too many requests",
}
COMMON: Final = (401, 403, 422, 500, 503)
WITH_BODY: Final = (400, 408, 413, 415)


def problems(*statuses: int) -> Responses:
    """Declares refusals in the OpenAPI document; the common ones always."""
    return {
        status: {
            "description": _PROBLEMS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}}},
        }
        for status in sorted({*COMMON, *statuses})
    }


def body_of(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Declares a request body that the route reads by itself, strictly."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that no cache keeps: it is one caller's."""
    return Response(orjson.dumps(content), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def base_url(request: Request) -> str:
    """Where the client found us, for URLs in answers. (`request.url` would parse all of it, for a tenth of a request's time.)"""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        host = "{}:{}".format(*request.scope["server"])
    return f"{request.scope['scheme']}://{host}"
