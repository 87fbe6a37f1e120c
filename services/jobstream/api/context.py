"""What a request finds in the application, and who may ask what."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends, Header, Request

from jobstream.api.bodies import BODY_BYTES_MAX, parse_object
from jobstream.api.database import Database
from jobstream.api.keys import Caller, Keys
from jobstream.api.models import parse_content_type, parse_position
from jobstream.api.problems import Problem
from jobstream.api.projection import Projection
from jobstream.api.readiness import Readiness
from jobstream.api.submit import Commands
from jobstream.runtime.config import Settings
from jobstream.runtime.log_store import LogStore

BODY_TIMEOUT_S: Final = 30.0  # 1 MiB on a slow line; who sends slower holds a place of the others


@dataclass(slots=True, kw_only=True)
class Context:
    """The application's parts, shared by all requests."""

    settings: Settings
    database: Database
    keys: Keys
    commands: Commands
    projection: Projection
    logs: LogStore
    readiness: Readiness
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # streams that could go on for days end
    followers: int = 0


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def caller_of(request: Request) -> Caller:
    """Whoever has a valid key. (A chain of FastAPI's dependencies would take a third of a request's time.)"""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return await context_of(request).keys.caller(key.strip() if scheme.lower() == "bearer" else None)


async def tenant_of(request: Request) -> str:
    caller = await caller_of(request)
    if caller.tenant is None:
        raise Problem(403, "an admin key manages tenants and keys and has no jobs; use a key of a tenant")
    return caller.tenant


async def admin_of(request: Request) -> Caller:
    caller = await caller_of(request)
    if caller.tenant is not None:
        raise Problem(403, "only an admin key manages tenants and keys; this is a key of a tenant")
    return caller


async def position_reached(
    request: Request,
    jobstream_position: Annotated[
        str | None,
        Header(
            description="`Jobstream-Position` of an earlier answer: wait, up to 2 s, until at least that is shown; else 503.",
            max_length=32,
        ),
    ] = None,
) -> None:
    context = context_of(request)
    await caller_of(request)  # first: nobody waits without a key
    position = parse_position(jobstream_position, context.settings.tenant_partitions)
    if position is not None:
        await context.projection.reached(position)


AnyCaller = Annotated[Caller, Depends(caller_of)]
Tenant = Annotated[str, Depends(tenant_of)]
Admin = Annotated[Caller, Depends(admin_of)]
AtPosition = Depends(position_reached)


async def read_object(request: Request) -> dict[str, object]:
    """The JSON object of the body; raises Problem 408, 413, 415, 400 or 422."""
    parse_content_type(request.headers.get("content-type"))
    return parse_object(await read_body(request))


async def read_body(request: Request) -> bytes:
    """The body, held to its limit while it comes: a chunked one does not say how long it will be."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > BODY_BYTES_MAX:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise _too_large()
    except TimeoutError:
        raise Problem(
            408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s", headers={"Connection": "close"}
        ) from None
    return bytes(body)


def _too_large() -> Problem:
    # Closed: the rest of the body would otherwise be read to its end, however long that is.
    return Problem(413, f"the body has more than {BODY_BYTES_MAX} bytes", headers={"Connection": "close"})
