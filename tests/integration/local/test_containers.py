"""The container files cannot be run everywhere; what can drift is compared."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobstream.cli.commands import COMMANDS
from jobstream.local import kafka
from jobstream.local.java import KAFKA_VERSION
from jobstream.runtime.config import Settings

INFRA = Path(__file__).parents[3] / "infra"
OURS = "jobstream:local"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((INFRA / "compose.yaml").read_text())
    return loaded


def test_every_service_can_be_started(compose: dict[str, Any]) -> None:
    services = compose["services"]
    known = {entry.name for entry in COMMANDS}
    for name, service in services.items():
        assert service["image"], name
        for needed in service.get("depends_on", {}):
            assert needed in services, f"{name} depends on {needed}"
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in compose["volumes"], f"{name} mounts {volume}"
        if service["image"] == OURS:
            assert service["command"][0] in known, name
            assert (INFRA / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    run = {service["command"][0] for service in services.values() if service["image"] == OURS}
    assert run >= {entry.name for entry in COMMANDS if entry.group == "Services"} | {"migrate", "topics"}


def test_services_are_told_only_what_they_know(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("JOBSTREAM_"):
            monkeypatch.delenv(name)
    known = {f"JOBSTREAM_{field.upper()}" for field in Settings.model_fields}
    for name, service in compose["services"].items():
        told = {key: value for key, value in service["environment"].items() if key.startswith("JOBSTREAM_")}
        assert set(told) <= known, name
        with monkeypatch.context() as patch:
            for key, value in told.items():
                patch.setenv(key, value)
            Settings()


def test_kafka_is_the_version_and_has_the_settings_of_the_local_stack(compose: dict[str, Any]) -> None:
    service = compose["services"]["kafka"]
    assert service["image"] == f"apache/kafka:{KAFKA_VERSION}"
    found = service["environment"]
    wanted = {f"KAFKA_{name.replace('.', '_').upper()}": value for name, value in kafka.SETTINGS.items()}
    assert {name: found.get(name) for name in wanted} == wanted
    assert compose["services"]["postgres"]["image"] == "postgres:18"


def test_no_password_has_a_default_and_nothing_is_published_beyond_loopback(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for key, value in service["environment"].items():
            if "PASSWORD" in key:
                assert value.startswith("${") and ":?" in value, f"{name}: {key}"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: {port}"


def test_agents_have_no_way_into_the_database(compose: dict[str, Any]) -> None:
    assert not [key for key in compose["services"]["agent"]["environment"] if "POSTGRES" in key or "PG" in key]


def test_image_copies_what_exists_and_does_not_run_as_root() -> None:
    lines = (INFRA / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {name for name, _ in instructions} <= {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
    for name, rest in instructions:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (INFRA.parent / source).exists(), source
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", [rest for name, rest in instructions if name == "USER"][-1])
