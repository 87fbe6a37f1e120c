"""The output of attempts, from the log store."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from jobstream.api import queries, views
from jobstream.api.answers import problems
from jobstream.api.context import AtPosition, Context, Tenant, context_of
from jobstream.api.models import LogsQuery
from jobstream.api.output import Output, State, unbroken
from jobstream.api.problems import Problem
from jobstream.api.routes_jobs import known_form, unknown
from jobstream.runtime.log_store import AttemptLog
from jobstream.schemas.states import TERMINAL

router = APIRouter(prefix=f"{views.API}/jobs", tags=["jobs"])

MEDIA_TYPE: Final = "text/plain; charset=utf-8"
HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
FOLLOWERS_MAX: Final = 500  # each asks the log store once a second, and holds one chunk of at most 1 MiB


@router.get(
    "/{job_id}/logs",
    summary="What an attempt has written",
    dependencies=[AtPosition],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(404)},
)
async def logs(request: Request, tenant: Tenant, job_id: str, asked: Annotated[LogsQuery, Query()]) -> Response:
    """Standard output and standard error in the order of writing. Bytes that are no UTF-8 are replaced by U+FFFD.

    Empty where the job has no attempt yet. With `follow` it goes on while the attempt runs, and waits for the first
    attempt of a job that is queued. An answer that breaks off before its last chunk is not whole: ask again.
    """
    context = context_of(request)
    state = await _look(context, tenant, known_form(job_id), asked.attempt)
    if asked.attempt is not None and state.log is None:
        raise Problem(404, f"the job {job_id} has no attempt {asked.attempt}")
    output = Output(context.logs, context.stopping)
    if state.log is not None:
        await output.probe(state.log)
    if not asked.follow:
        if state.log is None:
            return Response(b"", headers=HEADERS, media_type=MEDIA_TYPE)
        return StreamingResponse(unbroken(output.whole(state.log)), headers=HEADERS, media_type=MEDIA_TYPE)
    if context.followers >= FOLLOWERS_MAX:
        raise Problem(503, f"{FOLLOWERS_MAX} outputs are being followed already; try again later", code="busy")
    chosen = asked.attempt if state.log is None else state.log.attempt

    async def look() -> State:
        nonlocal chosen
        seen = await _look(context, tenant, job_id, chosen)
        if seen.log is not None:
            chosen = seen.log.attempt
        return seen

    async def followed() -> AsyncIterator[bytes]:
        with _follower(context):
            async for part in unbroken(output.follow(look, state)):
                yield part

    return StreamingResponse(followed(), headers=HEADERS, media_type=MEDIA_TYPE)


async def _look(context: Context, tenant: str, job_id: str, attempt: int | None) -> State:
    """Raises Problem 404 where there is no such job."""
    rows = await context.database.rows(queries.LOG_OF, {"tenant": tenant, "job_id": job_id, "attempt": attempt})
    if not rows:
        raise unknown(job_id)
    row = rows[0]
    if row["attempt"] is None:
        return State(log=None, ended=row["status"] in TERMINAL)
    log = AttemptLog(tenant=tenant, job_id=job_id, attempt=row["attempt"], token=row["token"])
    return State(log=log, ended=row["ended"])


@contextmanager
def _follower(context: Context) -> Iterator[None]:
    context.followers += 1
    try:
        yield
    finally:
        context.followers -= 1
