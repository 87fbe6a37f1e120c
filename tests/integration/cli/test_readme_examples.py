"""What the README shows works when it is pasted, after `jobstream up --detach`."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_line import run

README = Path(__file__).parents[3] / "README.md"
WITHIN_S = 120.0

pytestmark = pytest.mark.timeout(240)


def example(heading: str, language: str) -> str:
    """Every block of one language below a heading, in order."""
    section = README.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found, f"no {language} below {heading!r}"
    return "\n".join(found)


def pasted(environment: dict[str, str], script: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.run(
        ["bash", "-c", script], env=environment | {"PATH": path}, capture_output=True, text=True, timeout=WITHIN_S
    )


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("bash"), reason="the examples need curl and bash")
def test_the_api_examples(environment: dict[str, str]) -> None:
    done = pasted(environment, example("The API by example", "sh"))
    assert done.returncode == 0, done.stderr
    assert "5" in done.stdout.splitlines()  # the job's output
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    shown, listed, cancelled, machines, tenant, key = answers
    assert shown["name"] == "count-words"
    assert shown["status"] in (
        "assigned",
        "running",
        "completed",
    )  # the output ends a moment before the projection shows it
    assert listed["next_cursor"] is None
    assert cancelled["status"] in (409, "assigned", "running")
    assert [machine["machine_id"] for machine in machines["machines"]] == ["local-1", "local-2"]
    assert tenant["tenant"] == "search"
    assert key["api_key"].startswith("js_")


@pytest.mark.skipif(not shutil.which("bash"), reason="the examples need bash")
def test_the_command_line_examples(environment: dict[str, str]) -> None:
    job_id = run(environment, "submit", "--wait", "--", "true").stdout.strip()
    done = pasted(environment, f"job={job_id}\n{example('The command line by example', 'sh')}")
    assert done.returncode == 0, done.stderr
    assert "\n3\n" in done.stdout
    assert done.stderr.count("jobstream:") == 1  # of the job that fails on purpose
    assert "local-1" in done.stdout
    assert "jobstream.lifecycle" in done.stdout


def test_the_upstream_example(environment: dict[str, str]) -> None:
    code = f"{sys.executable} - <<'END'\n{example('Events from an upstream service', 'python')}\nEND"
    produced = pasted(environment, f'eval "$(jobstream env)"\n{code}')
    assert produced.returncode == 0, produced.stderr
    job_id = produced.stdout.strip()
    waited = run(environment, "logs", "-f", job_id)
    while waited.returncode == 125 and "there is no job" in waited.stderr:  # the projection is a moment behind
        waited = run(environment, "logs", "-f", job_id)
    assert waited.stdout == "from upstream\n"
