"""What machines report, and what follows: sessions, departures, losses."""

import pytest
from tests.support.scheduler_checks import check_log
from tests.support.scheduler_world import TIMES, Leader, assigned, kinds, new_cell, only, running, with_machine

from jobstream.scheduler.memory import WINDOW_MS
from jobstream.schemas import events as ev
from jobstream.topics.catalogue import TICKED


def _idle(leader: Leader, ms: int) -> None:
    leader.pass_time(ms)


def test_a_registration_is_admitted_once() -> None:
    leader = new_cell()
    leader.inboxes.register(labels={"zone": "a"})
    leader.inboxes.register()
    made = leader.round()
    assert kinds(made) == [ev.MachineAdmitted, ev.MachineReportIgnored]
    assert only(made, ev.MachineReportIgnored).code == "repeated"
    assert leader.state.machines["m1"].labels == {"zone": "a"}


def test_a_newer_session_takes_the_machine_over_and_older_leases_go_on_holding_resources() -> None:
    leader = new_cell()
    with_machine(leader, cpu=1_000)
    job = running(leader, cpu=900)
    with_machine(leader, session="s2", cpu=1_000)
    assert job.status == "running" and leader.state.fleet.free_cpu[0] == 100
    leader.inboxes.submit(cpu=101)
    assert not leader.round().records[1:]
    leader.inboxes.finished(job)  # the old session's own report still closes its lease
    assert ev.JobCompleted in kinds(leader.round())


def test_a_new_session_that_offers_less_is_given_nothing_before_there_is_room() -> None:
    leader = new_cell()
    with_machine(leader, cpu=1_000)
    job = running(leader, cpu=900)
    with_machine(leader, session="s2", cpu=500)
    assert leader.state.fleet.free_cpu[0] == -400
    leader.inboxes.submit(cpu=1)
    assert ev.JobAssigned not in kinds(leader.round())
    leader.inboxes.finished(job)
    assert ev.JobAssigned in kinds(leader.round())
    assert leader.state.fleet.free_cpu[0] == 499


def test_a_session_that_proves_the_old_one_gone_frees_its_leases_at_once() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    waiting = assigned(leader)
    leader.inboxes.register(session="s2", previous="s1")
    made = leader.round()
    assert kinds(made) == [ev.MachineAdmitted, ev.AttemptLost, ev.AttemptLost]
    assert (job.lost_attempts, waiting.lost_attempts) == (1, 0)
    assert job.status == waiting.status == "queued"


@pytest.mark.parametrize(
    "proof", [{"previous": None}, {"previous": "s0"}, {"previous": "s1", "boot_id": "another"}, {"boot_id": "another"}]
)
def test_without_proof_older_leases_wait_for_their_expiry(proof: dict[str, str]) -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.register(session="s2", **proof)  # type: ignore[arg-type]
    assert kinds(leader.round()) == [ev.MachineAdmitted]
    assert job.status == "running"
    _idle(leader, TIMES.expires_after_ms + 2_000)
    assert job.lease is None or job.attempt == 2


def test_a_machine_that_is_gone_frees_its_leases_and_is_forgotten() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.gone()
    assert kinds(leader.round()) == [ev.MachineLeft, ev.AttemptLost]
    assert job.status == "queued" and not leader.state.machines


def test_leases_of_an_older_session_are_not_ended_by_the_newer_one_leaving() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.register(session="s2")
    leader.inboxes.gone(session="s2")
    assert kinds(leader.round()) == [ev.MachineAdmitted, ev.MachineLeft]
    assert job.status == "running" and leader.state.machines["m1"].status == "left"
    with_machine(leader, session="s3")
    assert leader.state.fleet.free_cpu[0] == 900
    leader.inboxes.finished(job)
    leader.round()
    assert leader.state.fleet.free_cpu[0] == 1_000


def test_a_draining_machine_finishes_what_it_has() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    leader.inboxes.stopping()
    leader.inboxes.stopping()
    assert kinds(leader.round()) == [ev.MachineDraining, ev.MachineReportIgnored]
    leader.inboxes.finished(job)
    leader.inboxes.gone()
    leader.inboxes.gone()
    assert kinds(leader.round()) == [ev.MachineLeft, ev.MachineReportIgnored, ev.JobCompleted]
    assert not leader.state.machines and check_log(leader.log)


@pytest.mark.parametrize("report", ["present", "stopping", "gone"])
def test_reports_of_unknown_machines_and_older_sessions_change_nothing(report: str) -> None:
    leader = new_cell()
    with_machine(leader, session="s2")
    getattr(leader.inboxes, report)(session="s1")
    assert only(leader.round(), ev.MachineReportIgnored).code == "other_session"
    getattr(leader.inboxes, report)(machine_id="m9")
    assert only(leader.round(), ev.MachineReportIgnored).code == "unknown_machine"
    assert leader.state.machines["m1"].status == "up"


# ---- lost


def test_a_silent_machine_is_lost_and_is_admitted_again_when_it_is_heard() -> None:
    leader = new_cell()
    with_machine(leader, labels={"zone": "a"})
    _idle(leader, TIMES.expires_after_ms + 1_000)
    assert leader.state.machines["m1"].status == "up"
    leader.tick()
    assert kinds(leader.round()) == [ev.MachineLost]
    leader.inboxes.submit()
    assert ev.JobAssigned not in kinds(leader.round())
    leader.inboxes.present(number=2)
    made = leader.round()
    admitted = only(made, ev.MachineAdmitted)
    assert (admitted.session, admitted.labels) == ("s1", {"zone": "a"})
    assert only(made, ev.JobAssigned).presence == 2


def test_a_machine_that_registers_late_in_a_term_is_not_lost_before_its_first_presence() -> None:
    """The clock of its partition is old by then; the machine is not."""
    leader = new_cell()
    _idle(leader, 2 * TIMES.expires_after_ms)
    leader.inboxes.register()
    assert kinds(leader.round()) == [ev.MachineAdmitted]
    _idle(leader, TIMES.expires_after_ms - 1_000)
    assert leader.state.machines["m1"].status == "up"


def test_a_machine_in_the_place_of_one_that_left_has_its_own_age() -> None:
    leader = new_cell()
    with_machine(leader, "m1")
    _idle(leader, 2 * TIMES.presence_age_max_ms)
    leader.inboxes.gone("m1")
    leader.round()
    leader.inboxes.register("m2")
    leader.round()
    leader.tick()
    leader.inboxes.submit()
    assert ev.JobAssigned not in kinds(leader.round())  # not heard yet, wherever its slot was used before


def test_a_machine_with_leases_is_not_lost_before_they_expire() -> None:
    leader = new_cell()
    with_machine(leader)
    job = running(leader)
    _idle(leader, 60_000)
    leader.inboxes.heartbeat(job)
    leader.round()
    _idle(leader, 60_000)
    assert leader.state.machines["m1"].status == "up"
    _idle(leader, 60_000)
    assert [kind for kind in map(type, leader.log.events()) if kind in (ev.AttemptLost, ev.MachineLost)] == [
        ev.AttemptLost,
        ev.MachineLost,
    ]


def test_a_lost_machine_is_forgotten_after_the_window() -> None:
    leader = new_cell()
    with_machine(leader)
    _idle(leader, TIMES.expires_after_ms + 2_000)
    assert list(leader.state.lost) == ["m1"]
    leader.inboxes.now_ms += WINDOW_MS - 5_000
    leader.round()
    assert "m1" in leader.state.machines
    leader.inboxes.now_ms += 5_000
    leader.round()
    assert not leader.state.machines and not leader.state.lost
    leader.inboxes.present(number=9)
    assert only(leader.round(), ev.MachineReportIgnored).code == "unknown_machine"


def test_an_outage_of_the_machines_topic_loses_nobody() -> None:
    leader = new_cell()
    with_machine(leader)
    for _ in range(200):
        leader.tick(topics=[topic.name for topic in TICKED if topic.name != "machines"])
        leader.round()
    assert leader.state.machines["m1"].status == "up"
