"""One whole local stack for all tests of the command line."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import run

UP_WITHIN_S = 180.0


@pytest.fixture(scope="package")
def environment() -> Iterator[dict[str, str]]:
    """The variables of a user who has just typed `jobstream up --agents 2 --detach`."""
    data = Path(tempfile.mkdtemp(prefix="jobstream-cli-"))
    data.chmod(0o711)  # root's jobs, which are another user's, can reach their working folders inside
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBSTREAM_")}
    variables = {**clean, "JOBSTREAM_DATA": str(data)}
    configured = {
        "JOBSTREAM_KILL_GRACE_MS": "2000",
        "JOBSTREAM_PRODUCERS": '{"billing": ["default"]}',
        "JOBSTREAM_READ_OWN_WRITE_MS": "20000",  # what is submitted is shown then, on a busy machine too
    }
    try:
        up = run(variables | configured, "up", "--agents", "2", "--detach", "--json", within_s=UP_WITHIN_S)
        assert up.returncode == 0, up.stderr
        described = json.loads(up.stdout)
        assert set(described) == {"api_url", "api_key", "admin_key", "kafka", "postgres", "data", "metrics_urls"}
        yield variables
    finally:
        run(variables, "down", within_s=UP_WITHIN_S)
        shutil.rmtree(data, ignore_errors=True)
