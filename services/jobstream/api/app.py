"""The application: routes, what they share, and how everything that fails is told."""

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jobstream.api import openapi, routes_health, routes_jobs, routes_logs, routes_machines, routes_tenants
from jobstream.api.context import Context
from jobstream.api.database import Database
from jobstream.api.keys import Keys
from jobstream.api.output import StreamBroken
from jobstream.api.problems import CODES, Problem, field_name, invalid
from jobstream.api.projection import Projection
from jobstream.api.readiness import Readiness
from jobstream.api.submit import Commands
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import Unavailable
from jobstream.runtime.log_store import LogStore

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1_000  # at once; each may hold a body of 1 MiB
HEALTH: Final = ("/healthz", "/readyz")  # answered however busy we are
ERROR_HEADERS: Final = ("allow",)  # of the framework's own refusals: what may be told


class Application(FastAPI):
    """Breaks off streams that cannot be finished: an answer that ends well would be taken for the whole."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except StreamBroken as error:
            log.info("%s was broken off: %s", scope["path"], error)


class Admission:
    """Refuses what is too much at once, before anything is read of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in HEALTH:
            await self._app(scope, receive, send)
            return
        if self._requests >= REQUESTS_MAX:
            busy = Problem(503, f"{REQUESTS_MAX} requests are being answered; try again", code="busy")
            await busy.response()(scope, receive, send)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1


def make_app(settings: Settings) -> Application:
    """The application. Kafka and Postgres may be away; raises ConfigurationError where settings cannot work."""
    database = Database(settings)
    commands = Commands(settings)
    context = Context(
        settings=settings,
        database=database,
        keys=Keys(database),
        commands=commands,
        projection=Projection(settings, database),
        logs=LogStore(settings.log_store_url),
        readiness=Readiness(settings, database, commands),
    )
    app = Application(**openapi.DESCRIPTION, lifespan=_lifespan, redirect_slashes=False)
    app.state.context = context
    for routes in (routes_jobs, routes_logs, routes_machines, routes_tenants, routes_health):
        app.include_router(routes.router)
    app.add_middleware(Admission)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(Exception, _fault)
    openapi.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: Context = app.state.context
    context.commands.start()
    await context.database.start()
    await context.projection.start()
    try:
        yield
    finally:
        context.stopping.set()
        await context.projection.stop()
        await context.database.stop()
        context.commands.stop()


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _not_valid(_: Request, error: Exception) -> Response:
    """Parameters; bodies are read by the routes."""
    assert isinstance(error, RequestValidationError)
    return invalid(_parameter_fault(fault) for fault in error.errors()).response()


def _parameter_fault(fault: dict[str, Any]) -> tuple[str, str]:
    _, *names = fault["loc"]
    message = "unknown parameter" if fault["type"] == "extra_forbidden" else str(fault["msg"])
    return field_name(names), message


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in CODES else 400
    headers = {name: value for name, value in (error.headers or {}).items() if name.lower() in ERROR_HEADERS}
    return Problem(status, str(error.detail)[:200], headers=headers).response()


async def _unavailable(_: Request, error: Exception) -> Response:
    log.warning("%s", error)
    return Problem(503, "the log store does not answer; try again").response()


async def _fault(request: Request, error: Exception) -> Response:
    number = secrets.token_hex(4)
    log.error("fault %s in %s %s: %s", number, request.method, request.url.path, type(error).__name__)
    return Problem(500, f"this is a fault of ours; the log of the API has it as {number}").response()
