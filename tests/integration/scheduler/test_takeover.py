"""A leader that dies between any two steps loses and repeats nothing."""

import signal
import time

import pytest
from tests.integration.scheduler.conftest import PARTITIONS, StartService
from tests.support.played_machine import PATIENCE_S, PlayedMachine, Sender
from tests.support.projecting import wait_until
from tests.support.projection import expected_rows, stored_rows
from tests.support.written_log import WrittenLog, read_log

from jobstream.runtime.config import Settings
from jobstream.runtime.postgres import connect
from jobstream.schemas import events as ev

TENANTS = ("acme", "globex", "initech")
JOBS = 24


def submit_all(settings: Settings) -> set[tuple[str, str]]:
    sender = Sender(settings)
    jobs = {(tenant, sender.submit(tenant)) for number in range(JOBS) for tenant in [TENANTS[number % len(TENANTS)]]}
    sender.flush()
    return jobs


def wait_for_ends(settings: Settings, jobs: set[tuple[str, str]]) -> WrittenLog:
    """Until the projection shows that every job has ended; then the log."""
    wait_until(
        settings,
        lambda connection: (
            connection.execute("SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL").fetchone() == (len(jobs),)
        ),
    )
    return read_log(settings)


def check(settings: Settings, log: WrittenLog, jobs: set[tuple[str, str]]) -> None:
    """Each job was accepted once and ended once, nothing is left over, and the rows equal the log."""
    state = log.check(PARTITIONS)
    accepted = [(event.tenant, event.job_id) for event in log.of(ev.JobAccepted)]
    assert sorted(accepted) == sorted(jobs)
    assert log.ends() == dict.fromkeys(jobs, 1)
    assert not state.jobs
    machine = state.machines["played"]
    assert int(state.fleet.free_cpu[machine.slot]) == machine.cpu_millis
    assert not state.backlog.size
    expected = expected_rows(log.entries)
    with connect(settings, autocommit=True) as connection:
        stored = stored_rows(connection)
    for table in expected:
        assert stored[table] == expected[table], table


@pytest.mark.parametrize(
    ("point", "times"),
    [
        ("leader.before_init", 1),
        ("leader.after_init", 1),
        ("leader.after_takeover", 1),
        ("leader.before_round", 4),
        ("leader.after_decide", 4),
        ("leader.in_transaction", 4),
        ("leader.before_commit", 4),
        ("leader.after_commit", 4),
        ("leader.after_dispatch", 3),
    ],
)
def test_leader_killed_at_a_step_loses_and_repeats_nothing(
    settings: Settings, start: StartService, point: str, times: int
) -> None:
    start("projector")
    doomed = start("scheduler", fault=f"{point}:{times}")
    with PlayedMachine(settings) as machine:
        jobs = submit_all(settings)
        assert doomed.wait(PATIENCE_S) == -signal.SIGKILL
        start("scheduler")
        log = wait_for_ends(settings, jobs)
        assert len(machine.started) == len(set(machine.started)) == len(log.of(ev.JobAssigned))
    check(settings, log, jobs)


def test_standby_takes_over_from_the_log_it_has_followed(settings: Settings, start: StartService) -> None:
    start("projector")
    first = start("scheduler")
    with PlayedMachine(settings, outcome=lambda _: None) as machine:
        jobs = submit_all(settings)
        wait_until(
            settings,
            lambda connection: (
                connection.execute("SELECT count(*) FROM jobs WHERE status = 'running'").fetchone() == (8,)
            ),
        )
        standby = start("scheduler")
        # the second member is in the group once it follows; what it loaded by then is overtaken by the log
        time.sleep(3)
        machine.outcome = lambda _: "succeeded"
        killed_at = time.monotonic()
        first.kill()
        for assigned in [d for d in machine.dispatches if isinstance(d, ev.AssignAttempt)]:
            machine.report(assigned, "succeeded")
        log = wait_for_ends(settings, jobs)
        assert standby.poll() is None
        assert time.monotonic() - killed_at < PATIENCE_S
    check(settings, log, jobs)
    starts = [record for record in log.rounds if record.epoch_start is not None]
    assert [record.epoch_start.failover for record in starts if record.epoch_start] == [True, True]


def test_newcomer_leaves_a_healthy_leader_alone(settings: Settings, start: StartService) -> None:
    start("projector")
    start("scheduler")
    with PlayedMachine(settings):
        jobs = submit_all(settings)
        start("scheduler")
        more = submit_all(settings)
        log = wait_for_ends(settings, jobs | more)
    check(settings, log, jobs | more)
    assert {record.epoch for record in log.rounds} == {1}
