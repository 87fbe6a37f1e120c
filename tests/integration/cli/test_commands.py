"""The commands against a whole local stack: real Kafka, PostgreSQL, services and agents, and real processes as jobs."""

import json
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.support.command_line import JOBSTREAM, WITHIN_S, run

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

pytestmark = pytest.mark.timeout(240)


def submitted(environment: dict[str, str], *arguments: str) -> str:
    done = run(environment, "submit", *arguments)
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    assert UUID.fullmatch(job_id)
    return job_id


def job(environment: dict[str, str], job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run(environment, "get", job_id, "--json").stdout)
    return shown


def until(environment: dict[str, str], job_id: str, status: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while (now := job(environment, job_id)["status"]) != status:
        assert time.monotonic() < deadline, f"{job_id} is {now}, not {status}"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--", "true"), 0),
        (("--shell", "exit 3"), 3),
        (("--shell", "kill -TERM $$"), 128 + signal.SIGTERM),
        (("--shell", "kill -KILL $$"), 128 + signal.SIGKILL),
        (("--timeout", "0.3", "--", "sleep", "60"), 124),
        (("--", "/no/such/program"), 127),
    ],
)
def test_submit_wait_ends_as_the_job_ends(environment: dict[str, str], arguments: tuple[str, ...], code: int) -> None:
    done = run(environment, "submit", "--wait", *arguments)
    assert done.returncode == code, done.stderr
    assert UUID.fullmatch(done.stdout.strip())
    assert bool(done.stderr) == (code != 0)


def test_a_cancelled_job_is_130_for_who_waits(environment: dict[str, str]) -> None:
    job_id = submitted(environment, "--", "sleep", "600")
    until(environment, job_id, "running")
    with subprocess.Popen((*JOBSTREAM, "wait", job_id), env=environment, stderr=subprocess.PIPE) as waiting:
        cancelled = run(environment, "cancel", job_id)
        assert cancelled.returncode == 0, cancelled.stderr
        assert waiting.wait(WITHIN_S) == 130
    assert job(environment, job_id)["status"] == "cancelled"
    assert run(environment, "cancel", job_id).returncode == 0  # twice is as once


def test_cancelling_what_has_ended_is_refused(environment: dict[str, str]) -> None:
    job_id = submitted(environment, "--wait", "--", "true")
    refused = run(environment, "cancel", job_id)
    assert refused.returncode == 125
    assert job_id in refused.stderr
    assert "completed" in refused.stderr


def test_wait_gives_up_after_its_timeout_and_the_job_goes_on(environment: dict[str, str]) -> None:
    job_id = submitted(environment, "--", "sleep", "600")
    done = run(environment, "wait", job_id, "--timeout", "0.2")
    assert done.returncode == 124
    assert "has not ended within 0.2 s" in done.stderr
    assert job(environment, job_id)["status"] in ("queued", "assigned", "running")
    assert run(environment, "cancel", job_id).returncode == 0


def test_ctrl_c_is_quiet_and_leaves_the_job_alone(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        (*JOBSTREAM, "submit", "--wait", "--", "sleep", "600"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as waiting:
        assert waiting.stdout is not None
        job_id = waiting.stdout.readline().decode().strip()
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=WITHIN_S)
    assert waiting.returncode == 130
    assert errors == b""
    assert job(environment, job_id)["status"] in ("queued", "assigned", "running")
    run(environment, "cancel", job_id)


def test_logs_are_followed_byte_for_byte_while_the_job_runs(environment: dict[str, str]) -> None:
    job_id = submitted(environment, "--shell", "printf 'first\\n'; sleep 1; printf 'second, no newline'")
    with subprocess.Popen((*JOBSTREAM, "logs", "-f", job_id), env=environment, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"first\n"
        rest = following.stdout.read()
    assert rest == b"second, no newline"
    assert following.returncode == 0
    again = run(environment, "logs", job_id, "--attempt", "1")
    assert again.stdout == "first\nsecond, no newline"


def test_a_job_is_told_who_it_is_and_little_else(environment: dict[str, str]) -> None:
    job_id = submitted(environment, "--wait", "--env", "GREETING=hello you", "--", "env")
    told = dict(line.split("=", 1) for line in run(environment, "logs", job_id).stdout.splitlines())
    assert told["GREETING"] == "hello you"
    assert told["JOBSTREAM_JOB_ID"] == job_id
    assert int(told["JOBSTREAM_FENCING_TOKEN"]) > 0
    assert not {"JOBSTREAM_KAFKA", "JOBSTREAM_POSTGRES", "JOBSTREAM_API_KEY"} & set(told)


def test_lists_filter_and_show_what_was_submitted(environment: dict[str, str]) -> None:
    job_id = submitted(
        environment, "--wait", "--name", "listed", "--queue", "q-list", "--priority", "high", "--cpu", "0.25",
        "--memory", "128M", "--label", "team=docs", "--require", "zone=local", "--", "true"
    )  # fmt: skip
    found = json.loads(run(environment, "list", "--queue", "q-list", "--status", "completed", "--json").stdout)
    (shown,) = found["jobs"]
    assert shown["job_id"] == job_id
    assert shown["priority"] == "high"
    assert shown["resources"] == {"cpu": 0.25, "memory_gb": 0.125}
    assert shown["labels"] == {"team": "docs"}
    assert json.loads(run(environment, "list", "--queue", "q-list", "--status", "failed", "--json").stdout) == {
        "jobs": []
    }
    table = run(environment, "list", "--queue", "q-list").stdout
    assert job_id in table
    assert "listed" in table


def test_get_shows_the_attempts(environment: dict[str, str]) -> None:
    job_id = submitted(environment, "--wait", "--", "true")
    (attempt,) = job(environment, job_id)["attempts"]
    assert attempt["outcome"] == "succeeded"
    assert attempt["machine_id"] in ("local-1", "local-2")
    shown = run(environment, "get", job_id).stdout
    assert "succeeded" in shown
    assert attempt["machine_id"] in shown


def test_the_same_idempotency_key_is_the_same_job(environment: dict[str, str]) -> None:
    first = submitted(environment, "--idempotency-key", "cli-once", "--", "true")
    assert submitted(environment, "--idempotency-key", "cli-once", "--", "true") == first
    other = run(environment, "submit", "--idempotency-key", "cli-once", "--", "false")
    assert other.returncode == 125
    assert "Idempotency-Key" in other.stderr


def test_both_machines_are_listed(environment: dict[str, str]) -> None:
    found = json.loads(run(environment, "machines", "--json").stdout)
    assert [machine["machine_id"] for machine in found["machines"] if machine["status"] == "up"] == [
        "local-1",
        "local-2",
    ]
    assert "local-2" in run(environment, "machines").stdout


def test_tenants_and_keys_come_and_go(environment: dict[str, str]) -> None:
    assert run(environment, "tenants", "create", "cli-tenant").returncode == 0
    again = run(environment, "tenants", "create", "cli-tenant")
    assert again.returncode == 125
    assert "exists" in again.stderr
    key = run(environment, "tenants", "create-key", "cli-tenant", "--name", "ci").stdout.strip()
    assert json.loads(run(environment | {"JOBSTREAM_API_KEY": key}, "list", "--json").stdout) == {"jobs": []}
    (listed,) = json.loads(run(environment, "tenants", "keys", "cli-tenant", "--json").stdout)["keys"]
    assert key not in json.dumps(listed)
    assert run(environment, "tenants", "revoke-key", "cli-tenant", listed["key_id"]).returncode == 0
    refused = run(environment | {"JOBSTREAM_API_KEY": key}, "list")
    assert refused.returncode == 125
    assert "unknown or was revoked" in refused.stderr


def test_another_tenant_cannot_tell_a_job_from_none(environment: dict[str, str]) -> None:
    job_id = submitted(environment, "--", "true")
    run(environment, "tenants", "create", "stranger")
    key = run(environment, "tenants", "create-key", "stranger", "--name", "k").stdout.strip()
    for command in (("get", job_id), ("logs", job_id), ("cancel", job_id), ("wait", job_id)):
        refused = run(environment | {"JOBSTREAM_API_KEY": key}, *command)
        assert (refused.returncode, refused.stdout) == (125, "")
        assert "there is no job" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("submit",), "no command"),
        (("submit", "ls", "-l"), "come after --"),
        (("submit", "--cpu", "0", "--", "true"), "resources.cpu"),
        (("submit", "--memory", "lots", "--", "true"), "such as 512M"),
        (("submit", "--priority", "urgent", "--", "true"), "--priority"),
        (("submit", "--env", "X", "--", "true"), "NAME=VALUE"),
        (("submit", "--queue", "a b", "--", "true"), "queue"),
        (("get", "no-such-job"), "there is no job"),
        (("wait", "../jobs"), "there is no job"),
        (("nonsense",), "there is no command"),
        (("list", "--limit", "0"), "--limit"),
    ],
)
def test_wrong_usage_is_one_sentence_and_125(
    environment: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    done = run(environment, *arguments)
    assert done.returncode == 125
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_env_is_what_a_shell_can_evaluate(environment: dict[str, str]) -> None:
    script = f'eval "$({sys.executable} -m jobstream.cli env)"; unset JOBSTREAM_DATA; exec {sys.executable} -m jobstream.cli list'
    assert subprocess.run(["sh", "-c", script], env=environment, timeout=WITHIN_S, capture_output=True).returncode == 0


def test_topics_fit_the_catalogue(environment: dict[str, str]) -> None:
    addresses = dict(
        line.removeprefix("export ").split("=", 1)
        for line in run(environment, "env").stdout.splitlines()
        if "POSTGRES" not in line
    )
    cluster = environment | addresses
    fits = run(cluster, "topics", "verify", "--json")
    assert (fits.returncode, json.loads(fits.stdout)) == (0, {"differences": []})
    differs = run(cluster | {"JOBSTREAM_MAILBOX_PARTITIONS": "16"}, "topics", "verify", "--json")
    assert differs.returncode == 1
    assert "jobstream.dispatch has 8 partitions, not 16" in json.loads(differs.stdout)["differences"][0]
    refused = run(cluster | {"JOBSTREAM_MAILBOX_PARTITIONS": "16"}, "topics", "provision")
    assert refused.returncode == 125
    assert "nothing was changed" in refused.stderr


def test_status_shows_no_secrets(environment: dict[str, str]) -> None:
    status = run(environment, "status", "--json")
    shown = json.loads(status.stdout)
    assert shown["running"]
    assert {"kafka", "postgres", "scheduler", "projector", "api", "agent-local-1", "agent-local-2"} <= {
        child["name"] for child in shown["children"]
    }
    assert "js_" not in status.stdout
    assert "postgresql://" not in status.stdout
