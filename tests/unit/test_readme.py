"""The README names what exists: every setting, no command that is not there, the catalogue's own table."""

import re
from pathlib import Path

import pytest

from jobstream.cli.commands import COMMANDS
from jobstream.runtime.config import LeaseSettings, Settings
from jobstream.topics.catalogue import markdown_table

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def variables() -> list[str]:
    named = {"postgres_schema": "SCHEMA"}
    return [named.get(field, field.upper()) for field in Settings.model_fields if field != "lease"]


@pytest.mark.parametrize("name", variables())
def test_every_setting_is_in_the_table(name: str) -> None:
    assert re.search(rf"^\|.*`JOBSTREAM_{name}`.*\|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("field", LeaseSettings.model_fields)
def test_every_time_of_a_lease_is_in_the_table(field: str) -> None:
    assert re.search(rf"^\|.*`(JOBSTREAM_LEASE)?_{field.upper()}`.*\|$", TEXT, re.MULTILINE)


def test_every_variable_that_is_named_exists() -> None:
    known = {f"JOBSTREAM_{name}" for name in variables()} | {
        f"JOBSTREAM_LEASE_{field.upper()}" for field in LeaseSettings.model_fields
    }
    other = {"JOBSTREAM_CONFIG", "JOBSTREAM_ADMIN_KEY", "JOBSTREAM_FENCING_TOKEN", "JOBSTREAM_JOB_ID", "JOBSTREAM_"}
    other |= {"JOBSTREAM_MAVEN_URL", "JOBSTREAM_KAFKA_JVM"}
    assert set(re.findall(r"JOBSTREAM_[A-Z_]*", TEXT)) <= known | other


def test_every_command_that_is_shown_exists() -> None:
    shown = set(re.findall(r"^jobstream ([a-z-]+)", TEXT, re.MULTILINE))
    assert shown <= {entry.name for entry in COMMANDS}
    assert {"up", "submit", "topics", "scheduler"} <= shown


def test_the_topic_table_is_the_catalogues() -> None:
    between = TEXT.partition("<!-- topics:begin -->")[2].partition("<!-- topics:end -->")[0]
    assert between.strip() == markdown_table().strip()
