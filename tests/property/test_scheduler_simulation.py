"""A cell under misfortunes of every kind: leaders that die within a round, agents that are cut off, repeat and come back."""

import pytest
from tests.support.scheduler_checks import causes_to_answer, check_log
from tests.support.scheduler_simulation import Simulation

from jobstream.topics.catalogue import SUBMISSIONS

SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_job_is_lost_and_none_runs_twice_at_once(seed: int) -> None:
    run = Simulation(seed)
    run.run(90_000)
    run.chaos = 0.0
    for _ in range(400):
        run.run(1_000)
        if run.leader is not None and not run.leader.state.jobs and len(check_log(run.log)) == len(run.submitted):
            break
    assert not run.twice
    statuses = check_log(run.log)
    assert sorted(statuses) == sorted(run.submitted)
    assert set(statuses.values()) <= {"completed", "failed", "cancelled"}
    answered = {record.stamp.cause for record in run.log.records()}
    commands = {cause for cause in causes_to_answer(run.inboxes) if cause.startswith(SUBMISSIONS.name)}
    assert commands <= answered
    assert run.leader is not None
    for machine in run.leader.state.machines.values():
        assert run.leader.state.fleet.free_cpu[machine.slot] == machine.cpu_millis
