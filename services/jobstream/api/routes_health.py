"""Whether the process lives, and whether it can serve."""

from fastapi import APIRouter, Request, Response

from jobstream.api.answers import json_answer
from jobstream.api.context import context_of
from jobstream.api.problems import Problem
from jobstream.api.readiness import OK

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process lives")
async def healthz() -> Response:
    return json_answer({"status": OK})


@router.get(
    "/readyz",
    summary="Kafka and Postgres answer, topics and tables are there",
    responses={503: {"description": "`errors` says what is not ready"}},
)
async def readyz(request: Request) -> Response:
    context = context_of(request)
    if context.stopping.is_set():
        raise Problem(503, "stopping")
    checks = await context.readiness.checks()
    wrong = [(name, said) for name, said in checks.items() if said != OK]
    if wrong:
        raise Problem(503, "; ".join(said for _, said in wrong), errors=wrong)
    return json_answer({"status": OK, "checks": checks})
