"""Commands on jobs and machines, for users: all of them through the API."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from jobstream.cli import exit_codes, values
from jobstream.cli.connection import ApiFlags, endpoint
from jobstream.cli.output import Json, between, in_words, moment, print_json, print_table

if TYPE_CHECKING:
    from jobstream.cli.client import Client

Priority = Literal["critical", "high", "normal", "low"]
PENDING = "submitted"  # Kafka has the job, the projection does not show it yet
Status = Literal["waiting", "queued", "assigned", "running", "completed", "failed", "cancelled", "blocked"]
JobIdArgument = Annotated[str, Parameter(help="The job's id, as `submit` prints it.")]


@contextmanager
def connected(flags: ApiFlags | None) -> Iterator["Client"]:
    from jobstream.cli.client import Client  # with httpx 0.2 s, which `--help` need not wait for

    with Client(endpoint(flags)) as client:
        yield client


def submit(
    *arguments: Annotated[str, Parameter(name="COMMAND", help="What to run, after --.")],
    shell: Annotated[str | None, Parameter(help="Run this text by /bin/sh instead of a command.")] = None,
    name: Annotated[str | None, Parameter(help="What people call it; default: the program's name.")] = None,
    cpu: Annotated[float, Parameter(help="Cores, to a thousandth; default: 1.")] = 1,
    memory: Annotated[str, Parameter(help="Such as 512M or 2G; default: 1G.")] = "1G",
    priority: Annotated[Priority | None, Parameter(help="Which jobs go first.")] = None,
    queue: Annotated[str | None, Parameter(help="A backlog of your tenant.")] = None,
    timeout: Annotated[float | None, Parameter(help="Seconds that it may run.")] = None,
    env: Annotated[tuple[str, ...], Parameter(help="NAME=VALUE of its environment. No secrets.")] = (),
    label: Annotated[tuple[str, ...], Parameter(help="NAME=VALUE, a label of the job.")] = (),
    require: Annotated[tuple[str, ...], Parameter(help="NAME=VALUE that the machine must have.")] = (),
    idempotency_key: Annotated[str | None, Parameter(help="The same key again is the same job.")] = None,
    wait: Annotated[bool, Parameter(help="Wait for its end; end with its exit code.")] = False,
    json: Json = False,
    flags: ApiFlags | None = None,
) -> int:
    """Submit a job and print its id. With --wait, end as the job ends:

    the job's own exit code; 128 + n when signal n ended it;
    124 when it was out of time; 130 when it was cancelled;
    125 when it could not be submitted, never ran, or was lost.
    """
    command = values.command(arguments, shell)
    body: dict[str, Any] = {
        "name": name or values.job_name(command),
        "command": command,
        "resources": {"cpu": cpu, "memory_gb": values.memory_gib(memory)},
    }
    more = {
        "priority": priority,
        "queue": queue,
        "timeout_seconds": timeout,
        "env": values.pairs(env, "--env"),
        "labels": values.pairs(label, "--label"),
        "required_labels": values.pairs(require, "--require"),
    }
    body |= {field: value for field, value in more.items() if value not in (None, {})}
    with connected(flags) as client:
        job = client.submit(body, idempotency_key)
        if job["status"] == PENDING:
            print(
                "jobstream: Kafka has the job; `list` and `get` show it when the scheduler has read it", file=sys.stderr
            )
        if not wait:
            print_json(job) if json else print(job["job_id"])
            return 0
        if not json:
            print(job["job_id"], flush=True)
        return _waited(client, job["job_id"], None, json=json, pending=job["status"] == PENDING)


def wait(
    job_id: JobIdArgument,
    /,
    *,
    timeout: Annotated[float | None, Parameter(help="Seconds to wait at most; then the exit code is 124.")] = None,
    json: Json = False,
    flags: ApiFlags | None = None,
) -> int:
    """Wait until a job has ended, and end with its exit code (see `jobstream submit --help`)."""
    with connected(flags) as client:
        return _waited(client, job_id, timeout, json=json)


def _waited(client: "Client", job_id: str, timeout_s: float | None, *, json: bool, pending: bool = False) -> int:
    job = client.wait(job_id, timeout_s, pending=pending)
    if job is None:
        print(f"jobstream: job {job_id} has not ended within {timeout_s:g} s", file=sys.stderr)
        return exit_codes.TIMED_OUT
    if json:
        print_json(job)
    code = exit_codes.of_job(job)
    if code:
        print(f"jobstream: job {job_id} {why(job)}", file=sys.stderr)
    return code


def why(job: Mapping[str, Any]) -> str:
    """How a job ended, in words."""
    said = job.get("detail") or ""
    return f"{job['status']}: {said}" if said else str(job["status"])


def list_jobs(
    *,
    queue: Annotated[str | None, Parameter(help="Only this queue.")] = None,
    status: Annotated[Status | None, Parameter(help="Only jobs in this status.")] = None,
    limit: Annotated[int, Parameter(help="How many at most.")] = 50,
    all: Annotated[bool, Parameter(help="Every one, however many there are.")] = False,
    json: Json = False,
    flags: ApiFlags | None = None,
) -> None:
    """List jobs, newest first."""
    if limit < 1:
        raise ValueError(f"--limit is at least 1, not {limit}")
    with connected(flags) as client:
        jobs = list(client.jobs(queue=queue, status=status, limit=None if all else limit))
    if json:
        print_json({"jobs": jobs})
        return
    print_table(
        ("job", "name", "queue", "priority", "status", "machine", "created"),
        (
            (
                *(job[field] for field in ("job_id", "name", "queue", "priority", "status")),
                job.get("machine_id"),
                moment(job["created_at"]),
            )
            for job in jobs
        ),
    )


def get(job_id: JobIdArgument, /, *, json: Json = False, flags: ApiFlags | None = None) -> None:
    """Show one job and its attempts."""
    with connected(flags) as client:
        job = client.job(job_id)
    if json:
        print_json(job)
        return
    shown = {name: text for name, value in job.items() if name != "attempts" and (text := in_words(name, value))}
    print_table(("field", "value"), shown.items())
    if job["attempts"]:
        print()
        print_table(
            ("attempt", "outcome", "machine", "exit code", "signal", "started", "run time", "detail"),
            (
                (
                    *(attempt["attempt"], attempt["outcome"] or "open", attempt["machine_id"]),
                    *(attempt["exit_code"], attempt["signal"], moment(attempt["started_at"])),
                    *(between(attempt["started_at"], attempt["ended_at"]), attempt["detail"]),
                )
                for attempt in job["attempts"]
            ),
        )


def logs(
    job_id: JobIdArgument,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), help="Go on until it ends.")] = False,
    attempt: Annotated[int | None, Parameter(help="Which attempt; default: the newest.")] = None,
    flags: ApiFlags | None = None,
) -> None:
    """Print what a job has written, standard output and standard error in order, byte for byte."""
    with connected(flags) as client:
        for chunk in client.logs(job_id, attempt=attempt, follow=follow):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def cancel(
    *job_ids: Annotated[str, Parameter(name="JOB_ID", help="Which jobs.")],
    json: Json = False,
    flags: ApiFlags | None = None,
) -> int:
    """Cancel jobs. One that runs is told to end, and killed when it does not."""
    if not job_ids:
        raise ValueError("no job id: give one or more, as in `jobstream cancel JOB_ID`")
    answers: list[dict[str, Any]] = []
    failed = 0
    with connected(flags) as client:
        for job_id in job_ids:
            try:
                answers.append(client.cancel(job_id))
            except Exception as error:
                if len(job_ids) == 1:
                    raise
                failed += 1
                print(f"jobstream: {job_id}: {error}", file=sys.stderr)
    if json:
        print_json({"jobs": answers})
    else:
        for answer in answers:
            print(f"{answer['job_id']} {answer['status']}")
    return exit_codes.OWN_ERROR if failed else 0


def machines(*, json: Json = False, flags: ApiFlags | None = None) -> None:
    """List the machines: what they offer and whether they are there."""
    with connected(flags) as client:
        found = list(client.items("/machines", "machines"))
    if json:
        print_json({"machines": found})
        return
    print_table(
        ("machine", "status", "cpu", "memory GiB", "jobs", "labels", "since"),
        (
            (
                *(machine["machine_id"], machine["status"], *machine["resources"].values()),
                *(machine["running_jobs"], in_words("labels", machine["labels"]), moment(machine["admitted_at"])),
            )
            for machine in found
        ),
    )
