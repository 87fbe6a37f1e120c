"""One record stops nobody: what cannot be read, answered, written or applied, and what a leader learns from it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.scheduler_inboxes import job_id, spec
from tests.support.scheduler_world import RULES, Leader, assigned, kinds, new_cell, only, running, with_machine

from jobstream.scheduler import answers, evolve, observe, rounds
from jobstream.scheduler.inputs import Fault, Input, read_input
from jobstream.scheduler.rounds import RoundFailed, Suspects, run_round
from jobstream.scheduler.state import State
from jobstream.schemas import commands as cmd
from jobstream.schemas import events as ev
from jobstream.schemas.codec import encode
from jobstream.schemas.envelope import Envelope, to_headers

POISON = "poison"


def poisoned(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The same function, which raises for a record, event or job that names a poisoned job."""

    def wrapper(*arguments: Any) -> Any:
        if POISON in repr(arguments[at]):
            raise RuntimeError("cannot decide on this")
        return function(*arguments)

    return wrapper


# ---- records that cannot be decided on


def test_a_record_that_cannot_be_answered_is_a_dead_letter_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "answer", poisoned(answers.answer, 1))
    leader = new_cell()
    leader.inboxes.submit(name="one")
    bad = leader.inboxes.submit(name=POISON)
    leader.inboxes.submit(name="two")
    made = leader.round()
    assert kinds(made) == [ev.JobAccepted, ev.JobAccepted]
    ((record, fault),) = made.dead_letters
    assert (record, fault.reason) == (bad, "undecidable") and "RuntimeError" in fault.detail
    assert leader.state.positions[bad.topic, bad.partition] == 3  # never taken again


def test_an_answer_that_is_too_large_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "VALUE_BYTES_MAX", 2_000)
    leader = new_cell()
    leader.inboxes.submit(env={"A": "x" * 2_000})
    leader.inboxes.submit()
    made = leader.round()
    assert kinds(made) == [ev.JobAccepted]
    assert [fault.reason for _, fault in made.dead_letters] == ["too_large"]


def test_what_could_not_be_read_is_a_dead_letter_in_its_order() -> None:
    leader = new_cell()
    bad = leader.inboxes.put("submissions", Fault("json", "unexpected end"), partition=2)
    leader.inboxes.submit()
    made = leader.round()
    assert kinds(made) == [ev.JobAccepted]
    assert made.dead_letters == [(bad, Fault("json", "unexpected end"))]


# ---- facts that cannot be applied: the round is retaken without the culprit


def again(leader: Leader, inputs: list[Input], suspects: Suspects) -> rounds.Round:
    """What the next try does: the state is read from the log afresh."""
    fresh = Leader(leader.inboxes, leader.log)
    leader.log.follow(fresh.state, fresh.tail)
    fresh.take_over()
    fresh.suspects = suspects
    return fresh.decide(inputs)


def test_a_fact_that_cannot_be_applied_names_its_input_and_the_next_try_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "evolve", poisoned(evolve.evolve, 1))
    leader = new_cell()
    good, bad = leader.inboxes.submit(name="one"), leader.inboxes.submit(name=POISON)
    inputs = leader.take()
    with pytest.raises(RoundFailed) as failure:
        leader.decide(inputs)
    assert (failure.value.cause, failure.value.job) == (bad.cause, None)
    made = again(leader, inputs, Suspects(causes=frozenset({bad.cause})))
    assert [record.stamp.cause for record in made.records] == [good.cause]
    assert [(record, fault.reason) for record, fault in made.dead_letters] == [(bad, "broke_a_round")]


def test_a_sign_of_life_that_cannot_be_observed_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "observe", poisoned(observe.observe, 1))
    leader = new_cell()
    leader.inboxes.register("m1")
    leader.inboxes.present("m1")
    bad = leader.inboxes.present(POISON)
    inputs = leader.take()
    with pytest.raises(RoundFailed) as failure:
        leader.decide(inputs)
    assert failure.value.cause == bad.cause
    made = again(leader, inputs, Suspects(causes=frozenset({bad.cause})))
    assert kinds(made) == [ev.MachineAdmitted]


@pytest.mark.parametrize("start", [None, assigned, running])
def test_a_job_that_breaks_rounds_is_quarantined_and_gives_back(start: Callable[..., Any] | None) -> None:
    leader = new_cell()
    with_machine(leader)
    if start is None:
        leader.inboxes.submit(id=job_id(99), cpu=5_000)
        leader.round()
        job = leader.state.jobs["acme", job_id(99)]
    else:
        job = start(leader)
    leader.suspects = Suspects(jobs=frozenset({job.key, ("acme", job_id(1_000))}))
    failed = only(leader.round(), ev.JobFailed)
    assert failed.reason == "quarantined"
    assert not leader.state.jobs and not leader.state.leases and not leader.round().records


def test_a_placement_that_breaks_names_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_with_spec(names: dict[str, object], spec_json: bytes) -> bytes:
        raise RuntimeError("no dispatch for this")

    leader = new_cell()
    with_machine(leader)
    submission = leader.inboxes.submit()
    monkeypatch.setattr(rounds, "encode_with_spec", encode_with_spec)
    with pytest.raises(RoundFailed) as failure:
        leader.round()
    command = submission.content
    assert isinstance(command, cmd.SubmitJob)
    assert failure.value.job == ("acme", command.job_id) and "no dispatch" in failure.value.reason


# ---- bounds


def test_a_mass_expiry_is_spread_over_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FOLLOWUPS_MAX", 7)
    leader = new_cell()
    for number in range(4):
        with_machine(leader, f"m{number}")
    for number in range(20):
        leader.inboxes.submit(f"t{number}", cpu=200)
    leader.round()
    assert sum(job.lease is not None for job in leader.state.jobs.values()) == 20
    leader.pass_time(RULES.lease.expires_after_ms)
    leader.tick(after_ms=2_000)
    lost = []
    made = leader.round()
    lost.append(kinds(made).count(ev.AttemptLost))
    while made.more:
        made = leader.round()
        lost.append(kinds(made).count(ev.AttemptLost))
    assert max(map(len, [kinds(made)])) <= 7 and lost[:3] == [7, 7, 6]
    assert not any(job.lease for job in leader.state.jobs.values())


def test_many_starts_are_spread_over_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FOLLOWUPS_MAX", 2)
    leader = new_cell()
    with_machine(leader)
    jobs = [assigned(leader) for _ in range(5)]
    leader.inboxes.heartbeat(*jobs)
    made, told = leader.round(), []
    told.append(len(made.records))
    while made.more:
        made = leader.round()
        told.append(len(made.records))
    assert told == [2, 2, 1] and all(job.status == "running" for job in jobs)


def test_more_placements_than_a_round_makes_go_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PLACEMENTS_MAX", 3)
    leader = new_cell()
    with_machine(leader)
    for _ in range(5):
        leader.inboxes.submit()
    first = leader.round()
    assert kinds(first).count(ev.JobAssigned) == 3 and first.more
    second = leader.round()
    assert kinds(second) == [ev.JobAssigned] * 2 and not second.more


def test_an_epochs_first_round_takes_no_inputs() -> None:
    leader = new_cell()
    submission = leader.inboxes.submit()
    start = ev.EpochStart(configuration={}, failover=True, log_sequences={})
    with pytest.raises(AssertionError, match="first round"):
        run_round(State(partitions=4), [submission], 0, RULES, epoch_start=start)


# ---- reading


def read(topic: str, content: Any, key: bytes | None, **changes: str) -> Input:
    names = {"id": "e-1", "type": content.TYPE, "source": "/test", "time": "2026-01-01T00:00:00Z", **changes}
    return read_input(topic, 1, 7, 1_000, key, to_headers(Envelope(**names)), encode(content))  # type: ignore[arg-type, unused-ignore]


SUBMIT = cmd.SubmitJob(tenant="acme", job_id=job_id(1), spec=spec())
TICK = cmd.LeaderTick(epoch=1, number=1, round=1, elapsed_ms=0)


def test_a_good_record_is_read() -> None:
    record = read("submissions", SUBMIT, b"acme")
    assert record.content == SUBMIT and record.cause == "submissions/1/7" and record.event_id == "e-1"
    assert read("submissions.billing", SUBMIT, b"acme").content == SUBMIT
    assert read("heartbeats", TICK, None).content == TICK


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (read("submissions", SUBMIT, b"globex"), "key"),
        (read("submissions", SUBMIT, None), "key"),
        (read("completions", SUBMIT, b"acme"), "wrong_topic"),
        (read("submissions", TICK, None), "wrong_topic"),
        (read("submissions", SUBMIT, b"acme", type="jobstream.job.unheard.v1"), "unknown_type"),
        (read("submissions", SUBMIT, b"acme", id=""), "envelope"),
        (read("submissions", SUBMIT, b"acme", id="a b"), "envelope"),
        (read("submissions", SUBMIT, b"acme", id="x" * 129), "envelope"),
        (read_input("submissions", 1, 7, 1_000, b"acme", [("ce_type", b"\xff")], b"{}"), "envelope"),
        (read_input("submissions", 1, 7, 1_000, b"acme", None, b"{}"), "envelope"),
    ],
)
def test_a_bad_record_says_what_is_wrong(record: Input, reason: str) -> None:
    assert isinstance(record.content, Fault) and record.content.reason == reason
