"""Settings: what wins over what, and what is refused with the name of the culprit."""

from pathlib import Path

import pytest

from jobstream.runtime.config import load_settings
from jobstream.runtime.errors import ConfigurationError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `JOBSTREAM_CONFIG` points."""
    path = tmp_path / "jobstream.toml"
    monkeypatch.setenv("JOBSTREAM_CONFIG", str(path))
    return path


def test_a_flag_wins_over_a_variable_and_that_over_the_file_and_that_over_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('kafka = "file:1"\ncell = "file"\nlog_level = "WARNING"\nschema = "of_the_file"')
    monkeypatch.setenv("JOBSTREAM_KAFKA", "variable:1")
    monkeypatch.setenv("JOBSTREAM_CELL", "variable")
    settings = load_settings(kafka="flag:1")
    assert (settings.kafka, settings.cell, settings.log_level, settings.api_port) == (
        "flag:1",
        "variable",
        "WARNING",
        8080,
    )
    assert settings.postgres_schema == "of_the_file"
    monkeypatch.setenv("JOBSTREAM_SCHEMA", "of_the_variable")
    assert load_settings().postgres_schema == "of_the_variable"


def test_each_time_of_leases_follows_the_same_order(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[lease]\nttl_ms = 80000\nmargin_ms = 16000")
    monkeypatch.setenv("JOBSTREAM_LEASE_TTL_MS", "100000")
    lease = load_settings().lease
    assert (lease.ttl_ms, lease.margin_ms, lease.grace_ms) == (100_000, 16_000, 10_000)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        ("kafka =", "Invalid value"),
        ('kafak = "x:1"', "kafak"),
        ("[lease]\nttl = 1", "lease.ttl"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(file: Path, content: str | None, told: str) -> None:
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=told):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("JOBSTREAM_LEASE_TTL_MS", "long", "lease.ttl_ms"),
        ("JOBSTREAM_LEASE_TTL_MS", "60000", "twice the heartbeat"),
        ("JOBSTREAM_PRODUCERS", "billing", "producers.*JSON"),
        ("JOBSTREAM_API_PORT", "70000", "api_port"),
    ],
)
def test_a_variable_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=told):
        load_settings()
