"""How long the ids of jobs that have ended are known."""

from tests.support.scheduler_inboxes import PARTITIONS, START_MS, job_id
from tests.support.scheduler_world import Leader, kinds, new_cell

from jobstream.scheduler.memory import GENERATION_MS, WINDOW_MS, Memory
from jobstream.scheduler.state import State
from jobstream.scheduler.takeover import Tail
from jobstream.schemas import events as ev
from jobstream.schemas.ids import derive_job_id
from jobstream.schemas.states import JobStatus

DIGEST = "0123456789abcdef0123456789abcdef"
HOUR_MS = 3_600_000


def end_one(leader: Leader, key: str = "k") -> str:
    """A job that is cancelled as soon as it is accepted."""
    id = derive_job_id("acme", key)
    leader.inboxes.submit(id=id, idempotency_key=key)
    leader.inboxes.cancel("acme", id)
    leader.round()
    return id


def test_an_end_is_remembered_with_its_body() -> None:
    memory = Memory()
    statuses: list[JobStatus] = ["completed", "failed", "cancelled"]
    for number, status in enumerate(statuses):
        memory.add("acme", job_id(number), status, DIGEST, START_MS)
    assert [memory.status("acme", job_id(number)) for number in range(4)] == [*statuses, None]
    assert memory.status("globex", job_id(0)) is None
    assert memory.same_digest("acme", job_id(0), DIGEST)
    assert not memory.same_digest("acme", job_id(0), "f" * 32)
    assert not memory.same_digest("acme", job_id(9), DIGEST)
    assert len(memory) == 3


def test_a_generation_is_forgotten_once_all_of_it_is_old() -> None:
    memory = Memory()
    for hour in range(20):
        memory.add("acme", job_id(hour), "completed", DIGEST, START_MS + hour * HOUR_MS)
    assert [start for start, _ in memory.generations] == [START_MS + n * GENERATION_MS for n in range(4)]
    memory.forget(START_MS + 6 * HOUR_MS - 1)
    assert len(memory) == 20
    memory.forget(START_MS + 6 * HOUR_MS)
    assert [hour for hour in range(20) if memory.status("acme", job_id(hour))] == list(range(6, 20))
    memory.forget(START_MS + 1_000 * HOUR_MS)
    assert len(memory) == 2  # the newest generation is still being filled


def test_ends_that_come_out_of_order_are_known_long_enough() -> None:
    """Partitions of the log are read one after the other: the second begins before the first has ended."""
    memory = Memory()
    for hour in [0, 10, 20, 1, 11, 21]:
        memory.add("acme", job_id(hour), "completed", DIGEST, START_MS + hour * HOUR_MS)
    for hour in range(22):
        memory.forget(START_MS + hour * HOUR_MS)
        for known in [0, 1, 10, 11, 20, 21]:
            assert known < hour or memory.status("acme", job_id(known)) is not None


def test_a_repeat_within_the_window_is_a_no_op_and_beyond_it_the_id_is_free() -> None:
    leader = new_cell()
    id = end_one(leader)
    for hours in (24, 47):
        leader.inboxes.now_ms = START_MS + hours * HOUR_MS
        leader.inboxes.submit(id=id, idempotency_key="k")
        assert kinds(leader.round()) == [ev.SubmissionRepeated]
        end_one(leader, f"later {hours}")
    leader.inboxes.now_ms = START_MS + WINDOW_MS + 24 * HOUR_MS
    end_one(leader, "much later")
    assert leader.state.memory.status("acme", id) is None
    assert leader.state.memory.status("acme", derive_job_id("acme", "later 47")) == "cancelled"


def test_nothing_is_forgotten_without_submissions() -> None:
    leader = new_cell()
    id = end_one(leader)
    leader.inboxes.now_ms += 10 * WINDOW_MS
    leader.round()
    assert leader.state.memory.status("acme", id) == "cancelled"


def test_an_id_of_version_7_cannot_come_again_after_it_is_forgotten() -> None:
    leader = new_cell()
    leader.inboxes.submit(id=job_id(1))
    leader.inboxes.cancel("acme", job_id(1))
    leader.round()
    leader.inboxes.now_ms += WINDOW_MS + 1
    leader.inboxes.submit(id=job_id(1))
    made = leader.round()
    assert kinds(made) == [ev.JobRefused] and made.records[0].event.code == "id_too_old"  # type: ignore[attr-defined]


def test_a_follower_forgets_with_the_leader() -> None:
    """A standby evolves for weeks: what the leader forgets must not pile up there."""
    leader = new_cell()
    for day in range(10):
        leader.inboxes.now_ms = START_MS + day * 24 * HOUR_MS
        end_one(leader, f"day {day}")
    state, tail = State(partitions=PARTITIONS), Tail()
    leader.log.follow(state, tail)
    assert len(state.memory) == len(leader.state.memory) <= 4
    for day in range(10):
        id = derive_job_id("acme", f"day {day}")
        assert state.memory.status("acme", id) == leader.state.memory.status("acme", id)


def test_nothing_is_forgotten_before_every_inbox_is_read_to_where_it_was_at_the_takeover() -> None:
    """All was down for days. A repeat of before waits in one partition while another is read to the present."""
    leader = new_cell()
    id = end_one(leader, "k")
    tenants = ("acme", "globex", "initech", "umbrella", "hooli")
    other = next(tenant for tenant in tenants if leader.state.partition_of(tenant) != leader.state.partition_of("acme"))
    leader.inboxes.now_ms += 12 * HOUR_MS
    end_one(leader, "of the next generation")
    leader.inboxes.now_ms += HOUR_MS
    repeat = leader.inboxes.submit(id=id, idempotency_key="k")
    leader.inboxes.now_ms += 10 * 24 * HOUR_MS
    new = leader.inboxes.submit(other)
    successor = Leader.elected(leader.inboxes, leader.log)
    successor.state.soft.read[new.topic, new.partition] = new.offset + 1
    successor.log.commit(successor.decide([new]))
    assert kinds(successor.decide([repeat])) == [ev.SubmissionRepeated]
    for _ in range(2):
        successor.inboxes.submit(other)
        successor.round()
    assert successor.state.memory.status("acme", id) is None  # everything is read: now it may be forgotten
