import json
from pathlib import Path
from typing import Any

import pytest

from jobstream.cli.connection import ApiFlags, Endpoint, endpoint
from jobstream.runtime.errors import ConfigurationError

STACK = {"api_url": "http://127.0.0.1:4711", "api_key": "local-key", "admin_key": "local-admin"}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("API_URL", "API_KEY", "ADMIN_KEY", "CONFIG"):
        monkeypatch.delenv(f"JOBSTREAM_{name}", raising=False)
    monkeypatch.setenv("JOBSTREAM_DATA", str(tmp_path))


def stack_runs(folder: Path, content: Any = STACK) -> None:
    (folder / "stack.json").write_text(json.dumps(content))


def test_the_running_local_stack_is_the_default(tmp_path: Path) -> None:
    stack_runs(tmp_path)
    assert endpoint(None) == Endpoint(url="http://127.0.0.1:4711", key="local-key")
    assert endpoint(None, admin=True).key == "local-admin"


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack_runs(tmp_path)
    file = tmp_path / "jobstream.toml"
    file.write_text('api_url = "http://file:1"\napi_key = "file-key"\n')
    monkeypatch.setenv("JOBSTREAM_CONFIG", str(file))
    assert endpoint(None) == Endpoint(url="http://file:1", key="file-key")
    monkeypatch.setenv("JOBSTREAM_API_URL", "http://variable:2/")
    monkeypatch.setenv("JOBSTREAM_API_KEY", "variable-key")
    assert endpoint(None) == Endpoint(url="http://variable:2", key="variable-key")
    assert endpoint(ApiFlags(api_url="https://flag:3", api_key="flag-key")) == Endpoint(
        url="https://flag:3", key="flag-key"
    )


def test_the_local_key_never_goes_to_another_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack_runs(tmp_path)
    monkeypatch.setenv("JOBSTREAM_API_URL", "https://elsewhere.example")
    with pytest.raises(ConfigurationError, match=r"no key for https://elsewhere\.example: set JOBSTREAM_API_KEY"):
        endpoint(None)


def test_a_key_of_ones_own_is_used_at_the_local_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack_runs(tmp_path)
    monkeypatch.setenv("JOBSTREAM_API_KEY", "mine")
    assert endpoint(None) == Endpoint(url="http://127.0.0.1:4711", key="mine")


def test_data_names_another_stack(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stack_runs(other, {**STACK, "api_key": "other-key"})
    assert endpoint(ApiFlags(data=other)).key == "other-key"


@pytest.mark.parametrize("content", [None, {}, [], {"api_url": None}])
def test_without_any_api_it_is_said_how_to_get_one(content: Any, tmp_path: Path) -> None:
    if content is not None:
        stack_runs(tmp_path, content)
    with pytest.raises(ConfigurationError, match="jobstream up --detach"):
        endpoint(None)


def test_a_stack_that_has_no_keys_yet_is_starting(tmp_path: Path) -> None:
    stack_runs(tmp_path, {**STACK, "api_key": None})
    with pytest.raises(ConfigurationError, match="no key for"):
        endpoint(None)


def test_an_address_without_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSTREAM_API_KEY", "k")
    with pytest.raises(ConfigurationError, match="http://"):
        endpoint(ApiFlags(api_url="localhost:8080"))


def test_a_settings_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("api_url = ")
    monkeypatch.setenv("JOBSTREAM_CONFIG", str(broken))
    with pytest.raises(ConfigurationError, match=r"broken\.toml"):
        endpoint(None)
