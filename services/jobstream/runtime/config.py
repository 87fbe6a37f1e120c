"""Settings: flags over `JOBSTREAM_*` variables over a TOML file over defaults. What cannot be safe is refused here."""

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from jobstream.runtime.errors import ConfigurationError
from jobstream.schemas.ids import MACHINE_ID_PATTERN, TENANT_PATTERN
from jobstream.topics.catalogue import MAILBOX_PARTITIONS, TENANT_PARTITIONS
from jobstream.topics.provisioning import Plan

PREFIX: Final = "JOBSTREAM_"
SCHEMA_PATTERN: Final = r"^[a-z_][a-z0-9_]{0,40}$"
PRODUCER_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"


class LeaseSettings(BaseModel):
    """The times of leases, in ms; variables are `JOBSTREAM_LEASE_TTL_MS` and so on. `check` tells whether they are safe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttl_ms: Annotated[int, Field(ge=1_000)] = 90_000
    margin_ms: Annotated[int, Field(ge=100)] = 15_000
    grace_ms: Annotated[int, Field(ge=100)] = 10_000
    heartbeat_ms: Annotated[int, Field(ge=100)] = 30_000
    tick_ms: Annotated[int, Field(ge=100, le=1_000)] = 1_000
    # What the promise allows for: relative drift of clocks in parts per million, jumps of a broker's clock
    # within ttl + grace, and the time from a deadline until everything is stopped.
    drift_ppm: Annotated[int, Field(ge=0)] = 1_000
    broker_jumps: Annotated[int, Field(ge=0)] = 2
    stop_ms: Annotated[int, Field(ge=0)] = 2_000

    def check(self) -> None:
        """Raises ConfigurationError where two executions at once, or needless losses, would be possible."""
        if self.margin_ms >= self.ttl_ms:
            raise ConfigurationError(
                f"lease margin {self.margin_ms} ms must be below the time to live {self.ttl_ms} ms"
            )
        drift = self.drift_ppm * (2 * self.ttl_ms + self.grace_ms - self.margin_ms) // 1_000_000
        # one tick more: the first tick after a sign of life counts whole, though that came in the middle of it
        needed = (self.broker_jumps + 1) * self.tick_ms + drift + self.stop_ms
        if self.margin_ms + self.grace_ms <= needed:
            raise ConfigurationError(
                f"lease margin + grace is {self.margin_ms + self.grace_ms} ms and must be above {needed} ms "
                f"({self.broker_jumps} clock jumps and a tick of {self.tick_ms} ms, {drift} ms of drift, "
                f"{self.stop_ms} ms to stop): "
                "a job could run twice at once; raise one of them"
            )
        if self.ttl_ms - self.margin_ms <= 2 * self.heartbeat_ms:
            raise ConfigurationError(
                f"lease ttl - margin is {self.ttl_ms - self.margin_ms} ms and must be above twice the heartbeat period "
                f"({self.heartbeat_ms} ms): one lost heartbeat would end healthy work; raise ttl_ms or lower heartbeat_ms"
            )


class Settings(BaseSettings):
    """Everything that a service can be told. Fields are documented in the README."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="_",  # of `lease`: each of its variables wins over the file by itself
        env_nested_max_split=1,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
    )

    kafka: str = "127.0.0.1:9092"
    kafka_properties: dict[str, str] = Field(default_factory=dict, repr=False)  # any librdkafka property: SASL, TLS
    postgres: SecretStr = SecretStr("postgresql://127.0.0.1/jobstream")
    postgres_schema: Annotated[str, Field(pattern=SCHEMA_PATTERN)] = Field(
        default="jobstream", validation_alias=AliasChoices("JOBSTREAM_SCHEMA", "postgres_schema")
    )
    data: Path | None = None
    log_level: str = "INFO"

    topic_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")] = "jobstream."
    tenant_partitions: Annotated[int, Field(ge=1, le=1024)] = TENANT_PARTITIONS
    mailbox_partitions: Annotated[int, Field(ge=1, le=1024)] = MAILBOX_PARTITIONS
    replication_factor: Annotated[int, Field(ge=1, le=7)] = 3
    unsafe_replication: bool = False  # run without the guarantees of a replicated cluster
    producers: dict[str, list[str]] = Field(default_factory=dict)  # upstream service → tenants it may speak for

    api_host: str = "127.0.0.1"
    api_port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    api_url: str = "http://127.0.0.1:8080"
    api_key: SecretStr | None = None
    read_own_write_ms: Annotated[int, Field(ge=0, le=60_000)] = 2_000

    logs_url: str | None = None  # an object store; default: the folder `logs` in `data`

    cell: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = "cell-0"
    leader_session_ms: Annotated[int, Field(ge=1_000)] = 6_000
    socket_timeout_ms: Annotated[int, Field(ge=1_000)] = 4_000
    transaction_timeout_ms: Annotated[int, Field(ge=2_000)] = 10_000

    machine_id: Annotated[str, Field(pattern=MACHINE_ID_PATTERN)] | None = None
    cpu: Annotated[float, Field(gt=0, le=1_000)] | None = None  # cores offered; default: all of the machine's
    memory_gb: Annotated[float, Field(gt=0, le=65_536)] | None = None  # GiB offered; default: all of the machine's
    labels: dict[str, str] = Field(default_factory=dict)
    run_as: str | None = None  # user whom a root agent runs jobs as; default: an unprivileged one
    kill_grace_ms: Annotated[int, Field(ge=0, le=600_000)] = 10_000
    drain_ms: Annotated[int, Field(ge=0, le=86_400_000)] = 30_000  # for what runs when the agent is told to stop
    log_bytes_max: Annotated[int, Field(ge=1_024)] = 256 * 1024 * 1024  # of one attempt; the rest is cut with a marker

    lease: LeaseSettings = Field(default_factory=LeaseSettings)

    @field_validator("producers")
    @classmethod
    def _producers(cls, producers: dict[str, list[str]]) -> dict[str, list[str]]:
        for name, tenants in producers.items():
            if not re.match(PRODUCER_PATTERN, name):
                raise ValueError(f"{name!r} is no name for a producer: letters, digits, - and _")
            for tenant in tenants:
                if not re.match(TENANT_PATTERN, tenant):
                    raise ValueError(f"{tenant!r} is no tenant")
        return producers

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=_config_file()))

    @property
    def log_store_url(self) -> str:
        """Where attempts' output is kept: an object store URL; local folders are `file:///…`."""
        if self.logs_url is not None:
            return self.logs_url
        if self.data is None:
            raise ConfigurationError("no log store: set JOBSTREAM_LOGS_URL (s3://…, file:///…) or JOBSTREAM_DATA")
        return (self.data.resolve() / "logs").as_uri()

    def plan(self) -> Plan:
        """How this installation's topics are made."""
        return Plan(
            prefix=self.topic_prefix,
            tenant_partitions=self.tenant_partitions,
            mailbox_partitions=self.mailbox_partitions,
            replication_factor=self.replication_factor,
            sync_each_write=self.replication_factor == 1,
            producers=tuple(sorted(self.producers)),
        )


def _config_file() -> dict[str, Any]:
    """The content of the TOML file that `JOBSTREAM_CONFIG` names; raises ConfigurationError where it cannot be used."""
    named = os.environ.get(f"{PREFIX}CONFIG")
    if not named:
        return {}
    try:
        content = tomllib.loads(Path(named).read_text())
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or no TOML
        raise ConfigurationError(f"the file {named} that JOBSTREAM_CONFIG names cannot be read: {error}") from None
    if "schema" in content:  # named as its variable is
        content["postgres_schema"] = content.pop("schema")
    if unknown := sorted(content.keys() - Settings.model_fields.keys()):  # most likely misspelt
        raise ConfigurationError(f"the file {named} has what is no setting: {', '.join(unknown)}")
    return content


def load_settings(**flags: Any) -> Settings:
    """Settings from flags (None: not given), environment and file; raises ConfigurationError that names the setting."""
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ConfigurationError(f"settings cannot be used: {faults}") from None
    except SettingsError as error:  # a list or a table in a variable that is no JSON
        raise ConfigurationError(f"settings cannot be used: {error}: it must be JSON") from None
    settings.lease.check()
    return settings
