"""How agents stop, die and come back, and what of their attempts is left: nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.stack.isolation import Isolation
from tests.stack.waiting import eventually
from tests.support.agent_host import LEASE, WITHIN_S, AgentHost, alive, boottime_s

from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.new_ids import new_job_id

TRUST_S = (LEASE.ttl_ms - LEASE.margin_ms) / 1000
SLEEP = "import time; time.sleep(300)"
pytestmark = pytest.mark.timeout(120)


def sleeping(host: AgentHost) -> tuple[ev.AssignAttempt, str]:
    """An attempt that runs, and the mark of its process."""
    mark = f"mark-{new_job_id()}"
    assign = host.assign(["python3", "-c", SLEEP, mark])
    host.started(assign.token)
    eventually(lambda: alive(mark), within_s=WITHIN_S, what="it runs")
    return assign, mark


def test_sigterm_lets_what_runs_finish_takes_nothing_new_and_leaves(host: AgentHost, data: Path) -> None:
    process = host.start()
    sign = data / "go"
    running = host.assign(f"while [ ! -e {sign} ]; do sleep 0.05; done; echo done")
    host.started(running.token)
    process.send_signal(signal.SIGTERM)
    host.wait(cmd.MachineStopping, lambda one: one.session == host.session)
    assert host.refused(host.assign("true").token).code == "draining"
    sign.touch()
    assert host.finished(running.token).outcome == "succeeded"
    assert host.output(running) == b"done\n"
    assert process.wait(WITHIN_S) == 0
    host.wait(cmd.MachineGone, lambda one: one.session == host.session)
    assert host.guardians() == []


def test_what_does_not_finish_in_time_is_ended_and_reported_lost(topics: Isolation, data: Path) -> None:
    host = AgentHost(topics, data, drain_ms=300)
    try:
        process = host.start()
        assign, mark = sleeping(host)
        process.send_signal(signal.SIGTERM)
        report = host.finished(assign.token)
        assert (report.outcome, report.signal) == ("lost", signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0
        assert alive(mark) == []
    finally:
        host.close()


def test_a_second_sigterm_kills_at_once(host: AgentHost) -> None:
    process = host.start()
    assign, mark = sleeping(host)
    process.send_signal(signal.SIGTERM)
    host.wait(cmd.MachineStopping, lambda one: one.session == host.session)
    process.send_signal(signal.SIGTERM)
    report = host.finished(assign.token)
    assert (report.outcome, report.signal) == ("lost", signal.SIGKILL)
    assert process.wait(WITHIN_S) == 0
    assert alive(mark) == []


def test_leases_live_on_heartbeats_and_end_in_time_when_the_agent_freezes(host: AgentHost) -> None:
    process = host.start()
    assign, mark = sleeping(host)
    began = boottime_s()
    host.wait(cmd.LeaseHeartbeat, lambda one: one.number >= 6)  # five periods: longer than the trust of the start
    assert boottime_s() - began > TRUST_S
    assert alive(mark)
    process.send_signal(signal.SIGSTOP)
    frozen = boottime_s()
    try:
        eventually(lambda: not alive(mark), within_s=WITHIN_S, what="the guardian ends it")
        assert boottime_s() - frozen < TRUST_S + LEASE.stop_ms / 1000
    finally:
        process.send_signal(signal.SIGCONT)
    assert host.finished(assign.token).outcome == "lost"


def test_a_killed_agent_takes_its_attempts_along(host: AgentHost) -> None:
    process = host.start()
    _, mark = sleeping(host)
    process.kill()
    killed = boottime_s()
    process.wait()
    eventually(lambda: not host.guardians(), within_s=WITHIN_S, what="the guardian ends it, and itself")
    assert alive(mark) == []
    assert boottime_s() - killed < TRUST_S, "it waited for the end of trust"


def test_an_agent_that_comes_back_ends_what_its_former_self_left_and_proves_it(host: AgentHost) -> None:
    process = host.start()
    former = host.session
    _, mark = sleeping(host)
    process.kill()
    process.wait()
    host.start()
    assert alive(mark) == []
    registered = host.all(cmd.MachineRegistered)[-1]
    assert registered.session != former
    assert registered.previous_session == (former if os.geteuid() == 0 else None)
    assert host.run("true")[0].outcome == "succeeded"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes PID namespaces")
def test_a_killed_guardian_takes_everything_along_and_the_agent_says_so(host: AgentHost) -> None:
    process = host.start()
    assign, mark = sleeping(host)
    (guardian,) = host.guardians()
    os.kill(guardian, signal.SIGKILL)
    report = host.finished(assign.token)
    assert alive(mark) == []
    assert report.outcome == "lost"
    assert process.wait(WITHIN_S) != 0


@pytest.mark.parametrize("point", ["before_start", "after_start", "before_report", "after_report"])
def test_an_agent_killed_at_any_step_leaves_nothing(host: AgentHost, point: str) -> None:
    process = host.start(JOBSTREAM_FAULT=f"agent.{point}")
    mark = f"mark-{new_job_id()}"
    assign = host.assign(["python3", "-c", SLEEP if "start" in point else "pass", mark])
    assert process.wait(WITHIN_S) == -signal.SIGKILL
    eventually(lambda: not alive(mark), within_s=WITHIN_S, what="nothing of it runs")
    reported = [one for one in host.all(cmd.AttemptFinished) if one.token == assign.token]
    assert bool(reported) == (point == "after_report")
    host.start()
    assert host.run("true")[0].outcome == "succeeded"


def test_a_folder_has_one_agent(host: AgentHost) -> None:
    host.start()
    second = subprocess.run(
        [sys.executable, "-m", "jobstream.agent"],
        env={**os.environ, **host.environment},
        capture_output=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert second.returncode != 0
    assert b"another agent runs with the folder" in second.stderr
    assert b"Traceback" not in second.stderr
    assert host.run("true")[0].outcome == "succeeded"


def test_an_agent_waits_for_kafka_and_stops_when_told(topics: Isolation, data: Path) -> None:
    host = AgentHost(topics, data)
    process = host.launch(JOBSTREAM_KAFKA="127.0.0.1:1", unregistered="yes")
    try:
        eventually(host.guardians, within_s=WITHIN_S, what="the guardian is there")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0
        assert host.guardians() == []
    finally:
        host.close()
