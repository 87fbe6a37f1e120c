"""Commands that run a service in the foreground, and those that prepare its database."""

import logging
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from jobstream.cli import values
from jobstream.runtime.errors import JobstreamError


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFlags:
    """The settings that every service has a flag for; all the others are `JOBSTREAM_*` variables or in the TOML file."""

    kafka: Annotated[str | None, Parameter(help="Bootstrap servers. [JOBSTREAM_KAFKA]")] = None
    postgres: Annotated[str | None, Parameter(help="Connection URL. [JOBSTREAM_POSTGRES]")] = None
    postgres_schema: Annotated[str | None, Parameter(name="--schema", help="[JOBSTREAM_SCHEMA]")] = None
    topic_prefix: Annotated[str | None, Parameter(help="[JOBSTREAM_TOPIC_PREFIX]")] = None
    data: Annotated[Path | None, Parameter(help="Folder for local files. [JOBSTREAM_DATA]")] = None
    logs_url: Annotated[str | None, Parameter(help="Where jobs' output is kept. [JOBSTREAM_LOGS_URL]")] = None
    log_level: Annotated[str | None, Parameter(help="[JOBSTREAM_LOG_LEVEL]")] = None
    unsafe_replication: Annotated[
        bool | None, Parameter(help="Run without replicas. [JOBSTREAM_UNSAFE_REPLICATION]")
    ] = None


def settings_of(flags: ServiceFlags | None, **more: Any) -> Any:
    """`runtime.config.Settings` from flags, environment and file."""
    from jobstream.runtime.config import load_settings

    return load_settings(**asdict(flags or ServiceFlags()), **more)


def _run(service: str, flags: ServiceFlags | None, **more: Any) -> None:
    from jobstream.runtime.service import configure_logging

    settings = settings_of(flags, **more)
    configure_logging(settings.log_level)
    try:
        import_module(f"jobstream.{service}.__main__").run(settings)
    except JobstreamError:
        raise
    except Exception:  # a fault of ours: the log of a service has the whole of it
        logging.getLogger(__name__).exception("the %s ends", service)
        raise


def api(
    *,
    host: Annotated[str | None, Parameter(help="Address to listen on. [JOBSTREAM_API_HOST]")] = None,
    port: Annotated[int | None, Parameter(help="0: any free one. [JOBSTREAM_API_PORT]")] = None,
    flags: ServiceFlags | None = None,
) -> None:
    """Run the REST API until SIGTERM."""
    _run("api", flags, api_host=host, api_port=port)


def scheduler(
    *,
    cell: Annotated[str | None, Parameter(help="[JOBSTREAM_CELL]")] = None,
    flags: ServiceFlags | None = None,
) -> None:
    """Run a scheduler until SIGTERM. One leads; the others stand by and take over within seconds."""
    _run("scheduler", flags, cell=cell)


def projector(*, flags: ServiceFlags | None = None) -> None:
    """Run a projector until SIGTERM. Several share the partitions."""
    _run("projector", flags)


def agent(
    *,
    machine_id: Annotated[str | None, Parameter(help="This machine's name. [JOBSTREAM_MACHINE_ID]")] = None,
    cpu: Annotated[float | None, Parameter(help="Cores to offer; default: all. [JOBSTREAM_CPU]")] = None,
    memory: Annotated[
        str | None, Parameter(help="Memory to offer, such as 8G; default: all. [JOBSTREAM_MEMORY_GB]")
    ] = None,
    label: Annotated[tuple[str, ...], Parameter(help="NAME=VALUE, may be repeated. [JOBSTREAM_LABELS]")] = (),
    run_as: Annotated[str | None, Parameter(help="User whom a root agent runs jobs as. [JOBSTREAM_RUN_AS]")] = None,
    flags: ServiceFlags | None = None,
) -> None:
    """Run this machine's agent until SIGTERM; then it takes no more work and lets what runs finish."""
    _run(
        "agent",
        flags,
        machine_id=machine_id,
        cpu=cpu,
        memory_gb=None if memory is None else values.memory_gib(memory),
        labels=values.pairs(label, "--label") or None,
        run_as=run_as,
    )
