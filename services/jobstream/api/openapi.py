"""The OpenAPI document: generated from the routes, and completed by the bodies that routes read by themselves."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from jobstream.api.models import CancelRequest, JobRequest, KeyRequest, TenantRequest
from jobstream.api.problems import ProblemDetails
from jobstream.api.views import API

_SECURITY: Final = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "js_…",
    "description": "An API key. A tenant's key decides whose jobs are seen; an admin key manages tenants and keys.",
}
_BODIES: Final[tuple[type[BaseModel], ...]] = (JobRequest, CancelRequest, TenantRequest, KeyRequest, ProblemDetails)

DESCRIPTION: Final[dict[str, Any]] = {
    "title": "jobstream",
    "version": "1",
    "summary": "Submit jobs to a distributed scheduler, and see what became of them",
    "description": """
Send an API key as `Authorization: Bearer js_…`. It decides the tenant: others' jobs are 404.

- **Limits.** A body has at most 1 MiB, a page at most 500 items, a query at most 5 s; the rest is said at each field.
  At most 1,000 requests are answered at once, 500 of them followed outputs; more get a 503.
- **Errors** are problem details (RFC 9457): `type` for programs, `detail` for people, `errors` with the fields that are wrong.
- **A 503** has `Retry-After`. Whether a submission was taken is open then: sending it again is safe with an `Idempotency-Key`.
- **Reading your own writes.** Answers about a job carry `Jobstream-Position`; a read that sends it back sees at least that much.
- **Amounts.** CPU is in cores, memory in GiB (2^30 bytes), as decimals that are rounded up to a millicore and a MiB.
""".strip(),
    "license_info": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}


def install(app: FastAPI) -> None:
    """Serve the completed document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _complete(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        license_info=app.license_info,
        routes=app.routes,
    )
    _, bodies = models_json_schema(
        [(model, "validation") for model in _BODIES], ref_template="#/components/schemas/{model}"
    )
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(bodies["$defs"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schema["components"]["securitySchemes"] = {"apiKey": _SECURITY}
    for path, item in schema["paths"].items():
        if path.startswith(API):
            for operation in item.values():
                operation["security"] = [{"apiKey": []}]
    return schema
