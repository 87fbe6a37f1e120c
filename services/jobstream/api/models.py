"""What comes in over HTTP, with its limits, and how it becomes commands. Pure.

CPU comes in cores and memory in GiB, as decimals; both are rounded up to whole millicores and MiB.
"""

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    field_validator,
)

from jobstream.api.problems import Fault, Problem, faults_of, invalid
from jobstream.schemas.commands import (
    COMMAND_ARGUMENTS_MAX,
    COMMAND_BYTES_MAX,
    ENV_BYTES_MAX,
    ENV_ENTRIES_MAX,
    TEXT_LENGTH_MAX,
    TIMEOUT_MS_MAX,
    Argument,
    EnvName,
    EnvValue,
    JobName,
    JobSpec,
    Labels,
)
from jobstream.schemas.ids import IDEMPOTENCY_KEY_LENGTH_MAX, Queue, Tenant
from jobstream.schemas.resources import CPU_MILLIS_MAX, MEMORY_MIB_MAX, Resources
from jobstream.schemas.states import JobStatus, Priority

PAGE_JOBS_MAX: Final = 500
PAGE_JOBS: Final = 100
CURSOR_LENGTH_MAX: Final = 600
KEY_NAME_LENGTH_MAX: Final = 100
ATTEMPT_MAX: Final = 2**31 - 1
NOT_YET: Final = ("depends_on", "retry_policy", "locality", "schedule", "time_zone")
_IDEMPOTENCY_KEY: Final = re.compile(rf"[!-~ ]{{1,{IDEMPOTENCY_KEY_LENGTH_MAX}}}")
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_POSITION: Final = re.compile(r"(?a:(\d{1,4}):(\d{1,18}))")
_COMMAND_TAGS: Final = frozenset(("arguments", "shell"))

Cpu = Annotated[
    float,
    Field(
        gt=0,
        le=CPU_MILLIS_MAX / 1000,
        allow_inf_nan=False,
        description="Cores, as a decimal. Rounded up to a thousandth of a core.",
        examples=[0.5],
    ),
]
MemoryGb = Annotated[
    float,
    Field(
        gt=0,
        le=MEMORY_MIB_MAX / 1024,
        allow_inf_nan=False,
        description="GiB (2^30 bytes), as a decimal. Rounded up to a MiB.",
        examples=[0.25],
    ),
]
TimeoutSeconds = Annotated[
    float,
    Field(
        gt=0,
        le=TIMEOUT_MS_MAX / 1000,
        allow_inf_nan=False,
        description="From the start of the process, each attempt anew; at most 30 days. Rounded up to a millisecond.",
        examples=[3600],
    ),
]


def _command_kind(value: object) -> str | None:
    return "arguments" if isinstance(value, list) else "shell" if isinstance(value, str) else None


Arguments = Annotated[list[Argument], Field(min_length=1, max_length=COMMAND_ARGUMENTS_MAX)]
Shell = Annotated[Argument, StringConstraints(min_length=1)]
Command = Annotated[
    Annotated[Arguments, Tag("arguments")] | Annotated[Shell, Tag("shell")],
    Discriminator(
        _command_kind,
        custom_error_type="command_type",
        custom_error_message="Input should be a list of arguments, or a string for the shell",
    ),
    Field(
        description="A list of arguments is run as it is; a string is run by `/bin/sh -c`. "
        f"At most {COMMAND_BYTES_MAX} bytes of UTF-8 and {COMMAND_ARGUMENTS_MAX} arguments.",
        examples=[["python3", "-c", "print('hello')"], "sort input.txt | uniq -c"],
    ),
]


class RequestModel(BaseModel):
    """Strict: no text is taken for a number, no unknown field is ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ResourcesRequest(RequestModel):
    """What the job needs of a machine while it runs."""

    cpu: Cpu
    memory_gb: MemoryGb


class JobRequest(RequestModel):
    """A job to run. The whole body has at most 1 MiB."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "count-words",
                    "command": ["python3", "count.py", "--input", "books.txt"],
                    "resources": {"cpu": 0.5, "memory_gb": 0.25},
                    "priority": "normal",
                    "queue": "default",
                    "timeout_seconds": 600,
                    "env": {"LANG": "C.UTF-8"},
                    "labels": {"team": "search"},
                    "required_labels": {"zone": "eu-1"},
                }
            ]
        }
    )

    name: Annotated[JobName, Field(description="For people; characters that can be printed. Need not be unique.")]
    command: Command
    resources: ResourcesRequest
    priority: Priority = "normal"
    queue: Annotated[Queue, Field(description="A backlog within the tenant; it need not be made before.")] = "default"
    timeout_seconds: TimeoutSeconds | None = None
    env: Annotated[
        dict[EnvName, EnvValue],
        Field(
            max_length=ENV_ENTRIES_MAX,
            description=f"Environment variables, at most {ENV_BYTES_MAX} bytes in all. Values are never shown again.",
        ),
    ] = Field(default_factory=dict)
    labels: Annotated[Labels, Field(description="The job's own labels.")] = Field(default_factory=dict)
    required_labels: Annotated[Labels, Field(description="Labels that the machine must have.")] = Field(
        default_factory=dict
    )


class CancelRequest(RequestModel):
    """Why a job is cancelled."""

    reason: Annotated[str, StringConstraints(max_length=TEXT_LENGTH_MAX)] | None = None


class TenantRequest(RequestModel):
    """A tenant to make."""

    tenant: Annotated[Tenant, Field(examples=["search"])]


class KeyRequest(RequestModel):
    """An API key to make; `name` says who or what uses it."""

    name: Annotated[
        str, StringConstraints(min_length=1, max_length=KEY_NAME_LENGTH_MAX), Field(examples=["ci of team search"])
    ]

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("has characters that cannot be printed")
        return name


Cursor = Annotated[str | None, Field(max_length=CURSOR_LENGTH_MAX, description="`next_cursor` of the page before.")]


class PageQuery(BaseModel):
    """Which page of a list."""

    model_config = ConfigDict(extra="forbid")
    cursor: Cursor = None
    limit: Annotated[int, Field(ge=1, le=PAGE_JOBS_MAX)] = PAGE_JOBS


class JobsQuery(PageQuery):
    """Which jobs, newest first."""

    queue: Queue | None = None
    status: JobStatus | None = None


class LogsQuery(BaseModel):
    """Which output."""

    model_config = ConfigDict(extra="forbid")
    attempt: Annotated[int | None, Field(ge=1, le=ATTEMPT_MAX, description="Default: the newest.")] = None
    follow: Annotated[bool, Field(description="Go on until the attempt has ended.")] = False


Asked = TypeVar("Asked", bound=RequestModel)


def parse(model: type[Asked], content: Mapping[str, Any]) -> Asked:
    """Check a body; raises Problem 422 that names the fields."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise invalid(faults_of(error, _COMMAND_TAGS)) from None


def parse_job(content: Mapping[str, Any]) -> JobSpec:
    """The job that a body asks for; raises Problem 422 that names every field that is wrong."""
    faults: list[Fault] = [(name, "is not supported yet") for name in NOT_YET if name in content]
    known = {name: value for name, value in content.items() if name not in NOT_YET}
    try:
        asked = JobRequest.model_validate(known)
        spec = to_spec(asked)
    except ValidationError as error:
        faults.extend(faults_of(error, _COMMAND_TAGS))
    if faults:
        raise invalid(faults)
    return spec


def to_spec(asked: JobRequest) -> JobSpec:
    """In whole numbers, rounded up: a job gets what it asked for. Raises ValidationError on what only the whole shows."""
    seconds = asked.timeout_seconds
    return JobSpec(
        name=asked.name,
        command=tuple(asked.command) if isinstance(asked.command, list) else asked.command,
        resources=Resources(
            cpu_millis=rounded_up(asked.resources.cpu, 1000), memory_mib=rounded_up(asked.resources.memory_gb, 1024)
        ),
        priority=asked.priority,
        queue=asked.queue,
        timeout_ms=None if seconds is None else rounded_up(seconds, 1000),
        env=asked.env,
        labels=asked.labels,
        required_labels=asked.required_labels,
    )


def rounded_up(value: float, per_unit: int) -> int:
    """Whole parts of the decimal that was written: 0.07 cores are 70 millicores, although 0.07 * 1000 > 70 in binary."""
    return int((Decimal(repr(value)) * per_unit).to_integral_value(ROUND_CEILING))


def parse_idempotency_key(values: list[str]) -> str | None:
    """The one `Idempotency-Key` of a request, if any; raises Problem 422."""
    if not values:
        return None
    if len(values) > 1 or not _IDEMPOTENCY_KEY.fullmatch(values[0]):
        raise invalid(
            [("Idempotency-Key", f"must be one header of 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} printable ASCII characters")]
        )
    return values[0]


def parse_traceparent(value: str | None) -> str | None:
    """A W3C trace context as it came; None where it is none, as that specification wants."""
    return value if value is not None and _TRACEPARENT.fullmatch(value) else None


def parse_position(value: str | None, partitions: int) -> tuple[int, int] | None:
    """`Jobstream-Position` as (partition, next offset) of `lifecycle`; raises Problem 422."""
    if value is None:
        return None
    match = _POSITION.fullmatch(value)
    if not match or int(match[1]) >= partitions:
        raise invalid([("Jobstream-Position", "is not one that this API has given")])
    return int(match[1]), int(match[2])


def parse_content_type(value: str | None) -> None:
    """Raises Problem 415 unless the body is declared as JSON."""
    kind = (value or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        said = f"the content type is {kind[:100]!r}" if kind else "the content type is missing"
        raise Problem(415, f"{said}; send application/json")
