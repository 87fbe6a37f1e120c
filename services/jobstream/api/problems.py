"""Problem details (RFC 9457): what every refusal looks like. Pure, but for the response class."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:jobstream:problem:"
ERRORS_MAX: Final = 20  # a body with 10,000 faults is not told all of them
FIELD_LENGTH_MAX: Final = 200  # names of fields may come from the sender
RETRY_AFTER_S: Final = 1
NAME_OF_ENTRY: Final = "[key]"  # how pydantic says that the name of an entry is meant, not its value

TITLES: Final[Mapping[str, str]] = {
    "bad-request": "The request cannot be read",
    "unauthorized": "No valid API key",
    "forbidden": "This key may not do that",
    "not-found": "Not found",
    "method-not-allowed": "Method not allowed",
    "timeout": "The request took too long to arrive",
    "conflict": "The state does not allow that",
    "too-large": "The request is too large",
    "media-type": "The content type is not supported",
    "invalid": "The request is not valid",
    "internal": "Something went wrong on our side",
    "unavailable": "A service that is needed does not answer",
    "busy": "Too many requests at once",
}
CODES: Final[Mapping[int, str]] = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "timeout",
    409: "conflict",
    413: "too-large",
    415: "media-type",
    422: "invalid",
    500: "internal",
    503: "unavailable",
}

Fault = tuple[str, str]  # field, message


class Problem(Exception):
    """A refusal. `errors` are (field, message); fields are written as `resources.cpu` or `command[2]`, headers by name."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Iterable[Fault] = (),
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.code = code or CODES.get(status, "bad-request" if status < 500 else "internal")
        if status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def body(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "type": TYPE_PREFIX + self.code,
            "title": TITLES[self.code],
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            content["errors"] = [
                {"field": field[:FIELD_LENGTH_MAX], "message": message} for field, message in self.errors[:ERRORS_MAX]
            ]
        return content

    def response(self) -> Response:
        return Response(orjson.dumps(self.body()), self.status, self.headers, MEDIA_TYPE)


class ProblemError(BaseModel):
    """One fault of a request."""

    field: Annotated[str, Field(max_length=FIELD_LENGTH_MAX, examples=["resources.cpu"])]
    message: Annotated[str, Field(examples=["Input should be greater than 0"])]


class ProblemDetails(BaseModel):
    """RFC 9457. `type` is stable and for programs, `detail` is for people."""

    type: Annotated[str, Field(examples=[TYPE_PREFIX + "invalid"])]
    title: str
    status: int
    detail: str
    errors: Annotated[list[ProblemError] | None, Field(max_length=ERRORS_MAX)] = None


def invalid(errors: Iterable[Fault]) -> Problem:
    """422 that names the fields."""
    found = tuple(errors)
    told = "; ".join(f"{field[:FIELD_LENGTH_MAX]}: {message}" for field, message in found[:3])
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return Problem(422, told + more, errors=found)


def faults_of(error: ValidationError, hidden: frozenset[str] = frozenset()) -> tuple[Fault, ...]:
    """The faults without the values, which may be secret. `hidden` are parts of locations that only pydantic knows."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[:ERRORS_MAX]
    return tuple(
        (field_name(fault["loc"], hidden | {NAME_OF_ENTRY}), _message(fault["type"], fault["msg"], fault["loc"]))
        for fault in found
    )


def field_name(location: Iterable[str | int], hidden: frozenset[str] = frozenset()) -> str:
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part not in hidden:
            name += f".{part}" if name else part
    return name or "body"


def _message(kind: str, message: str, location: tuple[str | int, ...]) -> str:
    if location[-1:] == (NAME_OF_ENTRY,):
        return f"its name: {message}"
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "missing":
        return "is missing"
    return message.removeprefix("Value error, ")
