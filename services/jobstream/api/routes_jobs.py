"""Jobs: submit, look at, list, cancel."""

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from jobstream.api import cursors, queries, views
from jobstream.api.answers import (
    WITH_BODY,
    CancelledView,
    CancellingView,
    JobPage,
    JobView,
    PendingView,
    SubmittedView,
    base_url,
    body_of,
    json_answer,
    problems,
)
from jobstream.api.bodies import parse_object
from jobstream.api.context import AtPosition, Context, Tenant, context_of, read_body, read_object
from jobstream.api.models import (
    CancelRequest,
    JobRequest,
    JobsQuery,
    parse,
    parse_content_type,
    parse_idempotency_key,
    parse_job,
    parse_traceparent,
)
from jobstream.api.problems import Problem
from jobstream.schemas.codec import digest_of
from jobstream.schemas.commands import CancelJob, SubmitJob
from jobstream.schemas.ids import IDEMPOTENCY_KEY_LENGTH_MAX, JOB_ID_PATTERN, derive_job_id
from jobstream.schemas.new_ids import new_event_id, new_job_id

router = APIRouter(prefix=f"{views.API}/jobs", tags=["jobs"])

POSITION: Final = "Jobstream-Position"
REPLAYED: Final = "Idempotent-Replayed"
_JOB_ID: Final = re.compile(JOB_ID_PATTERN)


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    openapi_extra=body_of(JobRequest),
    responses={
        201: {"model": SubmittedView, "description": "The job exists"},
        202: {"model": PendingView, "description": "Kafka has the job; see Location for when it is shown"},
        **problems(*WITH_BODY),
    },
)
async def submit(
    request: Request,
    tenant: Tenant,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=IDEMPOTENCY_KEY_LENGTH_MAX,
            description="Printable ASCII. The same key and body make one job however often they are sent; "
            "another body under the same key is refused.",
        ),
    ] = None,
) -> Response:
    """A job is acknowledged when Kafka has it on all in-sync replicas.

    201 when the projection shows it, 202 when that takes longer than a moment. A 503 leaves open whether the job was made:
    sending it again is safe with an `Idempotency-Key`.
    """
    context = context_of(request)
    key = parse_idempotency_key(request.headers.getlist("idempotency-key"))
    spec = parse_job(await read_object(request))
    digest = digest_of(spec)
    if key is None:
        job_id = new_job_id()
    else:
        job_id = derive_job_id(tenant, key)
        # The leader remembers ids for a window; what is older is known here alone.
        if (row := await _state(context, tenant, job_id)) is not None:
            return _submitted(request, row, digest, replayed=True)
    command = SubmitJob(tenant=tenant, job_id=job_id, idempotency_key=key, spec=spec)
    command_id = new_event_id()
    with context.projection.watch(tenant, job_id, command_id, views.submission_answered) as waiting:
        await context.commands.send(command, command_id=command_id, traceparent=_traceparent(request))
        seen = await waiting.within(context.settings.read_own_write_ms / 1000)
    if seen is None:
        content = {
            "job_id": job_id,
            "status": views.SUBMITTED,
            "logs_url": f"{base_url(request)}{views.job_path(job_id)}/logs",
        }
        return json_answer(content, 202, {"Location": views.job_path(job_id)})
    row, refusal = seen
    if refusal is not None:
        raise views.submission_refused(refusal)
    assert row is not None, "answered by neither a row nor a refusal"
    return _submitted(request, row, digest, replayed=False)


@router.get(
    "/{job_id}",
    summary="One job with its attempts",
    dependencies=[AtPosition],
    responses={200: {"model": JobView}, **problems(404)},
)
async def get(request: Request, tenant: Tenant, job_id: str) -> Response:
    rows = await context_of(request).database.rows(queries.JOB, {"tenant": tenant, "job_id": known_form(job_id)})
    if not rows:
        raise unknown(job_id)
    return json_answer(views.job(rows[0], base_url(request)), headers={POSITION: views.position_of(rows[0])})


@router.get(
    "",
    summary="Jobs, newest first, page by page",
    dependencies=[AtPosition],
    responses={200: {"model": JobPage}, **problems(400)},
)
async def list_jobs(request: Request, tenant: Tenant, asked: Annotated[JobsQuery, Query()]) -> Response:
    """Each job that was there when the first page was asked for comes once, whatever is made meanwhile.

    A cursor belongs to the tenant and the filters that it was made with.
    """
    scope = ("jobs", tenant, asked.queue, asked.status)
    parameters: dict[str, Any] = {
        "tenant": tenant,
        "queue": asked.queue,
        "status": asked.status,
        "limit": asked.limit + 1,
    }
    if asked.cursor is not None:
        created_at, job_id = cursors.read_job(scope, asked.cursor)
        parameters |= {"created_at": created_at, "job_id": job_id}
    query = queries.jobs(queue=asked.queue is not None, status=asked.status is not None, after=asked.cursor is not None)
    rows = await context_of(request).database.rows(query, parameters)
    shown = rows[: asked.limit]
    more = len(rows) > len(shown)
    cursor = cursors.write_job(scope, shown[-1]["created_at"], shown[-1]["job_id"]) if more else None
    url = base_url(request)
    return json_answer(views.page("jobs", (views.job_summary(row, url) for row in shown), cursor))


@router.post(
    "/{job_id}/cancel",
    status_code=202,
    summary="Cancel a job",
    openapi_extra=body_of(CancelRequest, required=False),
    responses={
        200: {"model": CancelledView, "description": "It is cancelled, now or before"},
        202: {"model": CancellingView, "description": "It was asked for; the agent must end the job first"},
        **problems(404, 409, *WITH_BODY),
    },
)
async def cancel(request: Request, tenant: Tenant, job_id: str) -> Response:
    """Twice is the same as once. 409 when the job has completed or failed, also while the cancel was on its way."""
    context = context_of(request)
    body = await read_body(request)
    if body:
        parse_content_type(request.headers.get("content-type"))
    reason = parse(CancelRequest, parse_object(body)).reason if body else None
    row = await _state(context, tenant, known_form(job_id))
    if row is None:
        raise unknown(job_id)
    if not views.cancel_answered(row, None):
        command = CancelJob(tenant=tenant, job_id=job_id, reason=reason)
        command_id = new_event_id()
        with context.projection.watch(tenant, job_id, command_id, views.cancel_answered) as waiting:
            await context.commands.send(command, command_id=command_id, traceparent=_traceparent(request))
            seen = await waiting.within(context.settings.read_own_write_ms / 1000)
        row = row if seen is None or seen[0] is None else seen[0]
    status, content = views.cancel_answer(row)
    return json_answer(content, status, {POSITION: views.position_of(row)})


def known_form(job_id: str) -> str:
    """What cannot be an id of ours is as unknown as an id that nobody has."""
    if not _JOB_ID.fullmatch(job_id):
        raise unknown(job_id)
    return job_id


def unknown(job_id: str) -> Problem:
    return Problem(404, f"there is no job {job_id[:64]!r}")


async def _state(context: Context, tenant: str, job_id: str) -> views.Row | None:
    rows = await context.database.rows(queries.JOB_STATE, {"tenant": tenant, "job_id": job_id})
    return rows[0] if rows else None


def _submitted(request: Request, row: views.Row, digest: str, *, replayed: bool) -> Response:
    if row["digest"] != digest:
        raise views.conflict_of_key()
    headers = {"Location": views.job_path(row["job_id"]), POSITION: views.position_of(row)}
    if replayed:
        headers[REPLAYED] = "true"
    return json_answer(views.submitted(row, base_url(request)), 201, headers)


def _traceparent(request: Request) -> str | None:
    return parse_traceparent(request.headers.get("traceparent"))
