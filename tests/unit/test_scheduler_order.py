"""Who is served next, and where: priorities, turns, first come; whole resources; machines that may be given work."""

import itertools
import random

import pytest
from tests.support.scheduler_world import TIMES, Leader, kinds, new_cell, only, running, with_machine

from jobstream.scheduler.backlog import Backlog, Shape
from jobstream.scheduler.fleet import WINDOW
from jobstream.scheduler.state import Job
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.states import PRIORITIES


def served(leader: Leader) -> list[str]:
    """Names of the jobs that were assigned, in order."""
    accepted = {
        (event.tenant, event.job_id): event.spec.name
        for event in leader.log.events()
        if isinstance(event, ev.JobAccepted)
    }
    assigned = [event for event in leader.log.events() if isinstance(event, ev.JobAssigned)]
    return [accepted[event.tenant, event.job_id] for event in assigned]


def test_priorities_are_strict() -> None:
    leader = new_cell()
    for priority in reversed(PRIORITIES):
        for tenant in ("acme", "globex"):
            leader.inboxes.submit(tenant, priority=priority, name=priority)
    with_machine(leader)
    assert served(leader) == [priority for priority in PRIORITIES for _ in range(2)]


def test_a_low_job_waits_while_a_high_one_takes_all() -> None:
    leader = new_cell()
    leader.inboxes.submit(priority="low", name="low", cpu=1_000)
    leader.round()
    leader.inboxes.submit(priority="high", name="high", cpu=1_000)
    with_machine(leader)
    assert served(leader) == ["high"]


def test_tenants_take_turns_however_many_jobs_one_has() -> None:
    leader = new_cell()
    for number in range(5):
        leader.inboxes.submit("acme", name=f"a{number}")
    leader.round()
    leader.inboxes.submit("globex", name="g0")
    leader.inboxes.submit("initech", name="i0")
    with_machine(leader)
    names = served(leader)
    assert set(names[:3]) == {"a0", "g0", "i0"}
    assert names[3:] == ["a1", "a2", "a3", "a4"]


def test_turns_go_on_from_round_to_round() -> None:
    leader = new_cell()
    with_machine(leader, cpu=100)
    for _number in range(4):
        leader.inboxes.submit("acme", name="a")
        leader.inboxes.submit("globex", name="g")
    leader.round()
    for _ in range(7):
        (job,) = [job for job in leader.state.jobs.values() if job.lease is not None]
        leader.inboxes.finished(job)
        leader.round()
    names = served(leader)
    assert names.count("a") == names.count("g") == 4
    assert all(one != other for one, other in itertools.pairwise(names))


def test_queues_of_a_tenant_take_turns_and_each_is_first_come() -> None:
    leader = new_cell()
    for number in range(3):
        leader.inboxes.submit(queue="one", name=f"one{number}")
    for number in range(3):
        leader.inboxes.submit(queue="two", name=f"two{number}", cpu=50 + number)
    with_machine(leader)
    names = served(leader)
    assert names == ["one0", "two0", "one1", "two1", "one2", "two2"] or names[0] == "two0"
    assert [name for name in names if name.startswith("two")] == ["two0", "two1", "two2"]


def test_a_shape_that_fits_nowhere_hides_no_other() -> None:
    leader = new_cell()
    for _number in range(50):
        leader.inboxes.submit("acme", name="huge", cpu=100_000, priority="critical")
    leader.inboxes.submit("acme", name="small", priority="critical")
    leader.inboxes.submit("globex", name="low", priority="low")
    with_machine(leader)
    assert served(leader) == ["small", "low"]


def test_a_job_that_cannot_be_placed_costs_its_tenant_no_turn() -> None:
    """One place falls free in each round. Acme's huge job is looked at first each time; its small ones must be served."""
    leader = new_cell()
    with_machine(leader, cpu=100)
    leader.inboxes.submit("acme", name="huge", cpu=100_000)
    leader.round()
    for _ in range(6):
        leader.inboxes.submit("acme", name="a")
        leader.inboxes.submit("globex", name="g")
    leader.round()
    for _ in range(7):
        (job,) = [job for job in leader.state.jobs.values() if job.lease is not None]
        leader.inboxes.finished(job)
        leader.round()
    names = served(leader)
    assert names.count("a") == names.count("g") == 4


def test_a_job_that_cannot_be_placed_costs_its_queue_no_turn() -> None:
    leader = new_cell()
    with_machine(leader, cpu=100)
    leader.inboxes.submit(name="huge", cpu=100_000, queue="one")
    leader.round()
    for _ in range(6):
        leader.inboxes.submit(name="one", queue="one")
        leader.inboxes.submit(name="two", queue="two")
    leader.round()
    for _ in range(7):
        (job,) = [job for job in leader.state.jobs.values() if job.lease is not None]
        leader.inboxes.finished(job)
        leader.round()
    names = served(leader)
    assert names.count("one") == names.count("two") == 4


def test_a_job_that_runs_again_keeps_its_place() -> None:
    leader = new_cell()
    with_machine(leader, cpu=100)
    first = leader.inboxes.submit(name="first")
    leader.round()
    leader.inboxes.submit(name="second")
    leader.round()
    leader.inboxes.finished(leader.job(first), "lost")
    leader.round()
    assert served(leader) == ["first", "first"]


# ---- resources


def test_tenths_of_a_core_add_up() -> None:
    leader = new_cell()
    with_machine(leader, cpu=1_000)
    running(leader, cpu=900)
    leader.inboxes.submit(cpu=101)
    leader.inboxes.submit(cpu=100)
    leader.inboxes.submit(cpu=1)
    made = leader.round()
    only(made, ev.JobAssigned)
    slot = leader.state.machines["m1"].slot
    assert leader.state.fleet.free_cpu[slot] == 0


@pytest.mark.parametrize(("cpu", "memory", "fits"), [(1_000, 1_000, True), (1_001, 1, False), (1, 1_001, False)])
def test_both_resources_must_fit(cpu: int, memory: int, fits: bool) -> None:
    leader = new_cell()
    leader.inboxes.submit(cpu=cpu, memory=memory)
    with_machine(leader, cpu=1_000, memory=1_000)
    assert (ev.JobAssigned in [type(event) for event in leader.log.events()]) == fits


def test_a_thousand_random_jobs_leave_every_machine_whole() -> None:
    dice = random.Random(3)
    leader = new_cell()
    for number in range(5):
        with_machine(leader, f"m{number}", cpu=1_000 + number)
    for _ in range(20):
        for _ in range(50):
            leader.inboxes.submit(cpu=dice.randint(1, 400), memory=dice.randint(1, 400))
        leader.round()
        for job in list(leader.state.jobs.values()):
            if job.lease is not None:
                _end_somehow(leader, job, dice)
        leader.round()
        for number in range(5):
            leader.inboxes.present(f"m{number}", number=2 + leader.state.round)
    while leader.state.jobs:
        leader.round()
        for job in leader.state.jobs.values():
            if job.lease is not None:
                leader.inboxes.finished(job)
    fleet = leader.state.fleet
    for number in range(5):
        slot = leader.state.machines[f"m{number}"].slot
        assert (fleet.free_cpu[slot], fleet.free_memory[slot]) == (1_000 + number, 1_000)


def _end_somehow(leader: Leader, job: Job, dice: random.Random) -> None:
    assert job.lease is not None
    match dice.randrange(6):
        case 0:
            leader.inboxes.finished(job)
        case 1:
            leader.inboxes.finished(job, "failed")
        case 2:
            leader.inboxes.refused(job)
        case 3:
            leader.inboxes.finished(job, "lost")
        case 4:
            leader.inboxes.cancel(job.tenant, job.job_id)
            leader.inboxes.finished(job, "cancelled")


# ---- machines


def test_required_labels_must_all_be_there() -> None:
    leader = new_cell()
    wanted = {"zone": "a", "disk": "ssd"}
    submission = leader.inboxes.submit(required_labels=wanted)
    with_machine(leader, "m1", labels={"zone": "a"})
    with_machine(leader, "m2", labels={"zone": "a", "disk": "hdd"})
    with_machine(leader, "m3", labels={"zone": "b", "disk": "ssd", "more": "x"})
    assert leader.job(submission).status == "queued"
    with_machine(leader, "m4", labels={"zone": "a", "disk": "ssd", "more": "x"})
    lease = leader.job(submission).lease
    assert lease is not None and lease.machine_id == "m4"


def test_labels_of_a_new_session_count_at_once() -> None:
    leader = new_cell()
    submission = leader.inboxes.submit(required_labels={"zone": "a"})
    with_machine(leader, "m1", labels={"zone": "b"})
    with_machine(leader, "m1", session="s2", labels={"zone": "a"})
    assert leader.job(submission).status == "assigned"


def test_the_tightest_machine_of_a_window_is_taken() -> None:
    leader = new_cell()
    with_machine(leader, "m1", cpu=4_000)
    with_machine(leader, "m2", cpu=500)
    with_machine(leader, "m3", cpu=200, memory=2_000)
    leader.inboxes.submit(cpu=300)
    assert only(leader.round(), ev.JobAssigned).machine_id == "m2"


def test_every_machine_of_a_large_fleet_is_found() -> None:
    """More machines than a window holds, and one job for each: the last ones must be found too, wherever they are."""
    leader = new_cell()
    count = 2 * WINDOW + 3
    for number in range(count):
        leader.inboxes.register(f"m{number:04}", cpu=100)
        leader.inboxes.present(f"m{number:04}")
    leader.round()
    for _ in range(count + 1):
        leader.inboxes.submit(cpu=100)
    assigned = [record.event for record in leader.round().records if isinstance(record.event, ev.JobAssigned)]
    assert len({event.machine_id for event in assigned}) == count
    assert leader.state.backlog.size == 1


def test_only_machines_that_were_heard_are_given_work() -> None:
    leader = new_cell()
    submission = leader.inboxes.submit()
    leader.inboxes.register()
    leader.round()
    assert leader.job(submission).status == "queued"
    leader.inboxes.present(session="s0")
    leader.round()
    assert leader.job(submission).status == "queued"
    leader.inboxes.present(number=7)
    assert only(leader.round(), ev.JobAssigned).presence == 7


def test_a_presence_must_be_fresh() -> None:
    leader = new_cell()
    with_machine(leader)
    leader.pass_time(TIMES.presence_age_max_ms + 1_000)  # the first tick of an epoch counts nothing
    on_time = leader.inboxes.submit()
    leader.round()
    assert leader.job(on_time).status == "assigned"
    leader.pass_time(1_000)
    late = leader.inboxes.submit()
    leader.round()
    assert leader.job(late).status == "queued"
    leader.inboxes.present(number=2)
    leader.round()
    assert leader.job(late).status == "assigned"


@pytest.mark.parametrize("report", ["stopping", "gone"])
def test_a_machine_that_stops_or_leaves_is_given_nothing(report: str) -> None:
    leader = new_cell()
    with_machine(leader)
    getattr(leader.inboxes, report)()
    leader.inboxes.submit()
    assert ev.JobAssigned not in kinds(leader.round())


def test_a_suspect_machine_is_given_nothing_until_it_is_heard() -> None:
    leader = new_cell()
    with_machine(leader, "m1")
    submission = leader.inboxes.submit()
    leader.round()
    leader.inboxes.refused(leader.job(submission))
    leader.round()
    leader.pass_time(3_000)
    assert leader.job(submission).status == "queued"
    with_machine(leader, "m2")
    lease = leader.job(submission).lease
    assert lease is not None and lease.machine_id == "m2"
    another = leader.inboxes.submit(cpu=950)
    leader.round()
    assert leader.job(another).status == "queued"
    leader.inboxes.present("m1", number=1)  # the one that was read before it was suspect
    leader.round()
    assert leader.job(another).status == "queued"
    leader.inboxes.present("m1", number=2)
    leader.round()
    assert leader.job(another).status == "assigned"


def test_a_job_says_where_it_may_start() -> None:
    leader = new_cell()
    with_machine(leader, "m1", session="s7")
    submission = leader.inboxes.submit(command=("echo", "x"))
    made = leader.round()
    command = submission.content
    assert isinstance(command, cmd.SubmitJob)
    assigned = only(made, ev.JobAssigned)
    (machine_id, type_name, value) = made.dispatches[0]
    assert (machine_id, type_name, assigned.session) == ("m1", ev.AssignAttempt.TYPE, "s7")
    told = ev.AssignAttempt.model_validate_json(value)
    assert (told.token, told.presence, told.spec) == (assigned.token, assigned.presence, command.spec)


# ---- the backlog by itself


def test_a_bucket_forgets_the_jobs_that_left_behind_its_head() -> None:
    """One job that fits nowhere, and a stream of others that are cancelled: what has left must not pile up."""
    backlog, shape = Backlog(), Shape(100, 100, ())
    backlog.add(0, "acme", "default", shape, 0, ("acme", "head"))
    for number in range(1, 10_000):
        backlog.add(0, "acme", "default", shape, number, ("acme", str(number)))
        backlog.remove(0, "acme", "default", shape, ("acme", str(number)))
    bucket = backlog.levels[0]["acme"]["default"][shape]
    assert len(bucket.heap) < 1_000
    assert bucket.first() == 0


def test_an_empty_backlog_keeps_nothing() -> None:
    backlog = Backlog()
    dice = random.Random(5)
    entries = [
        (dice.randrange(4), f"t{dice.randrange(3)}", f"q{dice.randrange(3)}", Shape(dice.randrange(1, 4), 1, ()), n)
        for n in range(300)
    ]
    for level, tenant, queue, shape, number in entries:
        backlog.add(level, tenant, queue, shape, number, (tenant, str(number)))
    dice.shuffle(entries)
    for level, tenant, queue, shape, number in entries:
        backlog.remove(level, tenant, queue, shape, (tenant, str(number)))
    assert backlog.size == 0 and not any(backlog.levels)
