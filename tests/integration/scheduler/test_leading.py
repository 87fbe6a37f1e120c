"""What a leader answers on the real broker: leases, cancels, stale reports, dead letters, poison, a new epoch."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from tests.integration.scheduler.conftest import PARTITIONS, StartService
from tests.support.played_machine import PATIENCE_S, PlayedMachine, Sender
from tests.support.projecting import wait_until
from tests.support.written_log import WrittenLog, read_dead_letters, read_log

from jobstream.runtime.config import Settings
from jobstream.scheduler import answers
from jobstream.scheduler import evolve as evolution
from jobstream.scheduler.__main__ import run
from jobstream.scheduler.inputs import Input
from jobstream.scheduler.journal import Doubtful, Journal
from jobstream.scheduler.rounds import Round
from jobstream.schemas import events as ev
from jobstream.schemas.commands import CancelJob
from jobstream.schemas.envelope import Envelope, to_headers
from jobstream.schemas.ids import derive_job_id
from jobstream.topics.catalogue import COMPLETIONS, HEARTBEATS, MACHINES, SUBMISSIONS

ROUNDS = "jobstream.scheduler.rounds"
Leading = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def leading(settings: Settings, start: StartService) -> Leading:
    """Runs a leader in a thread of this process, so that a test can replace its parts, beside a real projector."""

    @contextmanager
    def lead() -> Iterator[None]:
        start("projector")
        stop = threading.Event()
        thread = threading.Thread(target=run, args=(settings, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_S)
        assert not thread.is_alive()

    return lead


@pytest.fixture
def sender(settings: Settings) -> Iterator[Sender]:
    made = Sender(settings)
    yield made
    made.flush()


def wait_for_status(settings: Settings, job_id: str, status: str) -> None:
    query = "SELECT status FROM jobs WHERE job_id = %s"
    wait_until(settings, lambda connection: connection.execute(query, [job_id]).fetchone() == (status,))


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, f"not within {PATIENCE_S} s"
        time.sleep(0.05)  # what is waited for happens in another thread, which gives no signal


def story(log: WrittenLog, job_id: str) -> list[str]:
    return [type(event).__name__ for event in log.of(ev.JobEvent) if event.job_id == job_id]


def test_job_goes_through_every_state(settings: Settings, leading: Leading, sender: Sender) -> None:
    with leading(), PlayedMachine(settings, outcome=lambda _: None) as machine:
        job_id = sender.submit("acme")
        wait_for_status(settings, job_id, "running")
        (assigned,) = [d for d in machine.dispatches if isinstance(d, ev.AssignAttempt)]
        machine.report(assigned, "succeeded")
        wait_for_status(settings, job_id, "completed")
    log = read_log(settings)
    log.check(PARTITIONS)
    assert story(log, job_id) == ["JobAccepted", "JobAssigned", "JobStarted", "JobCompleted"]


def test_silent_lease_expires_and_the_job_runs_elsewhere(settings: Settings, leading: Leading, sender: Sender) -> None:
    with leading():
        with PlayedMachine(settings, "mute", answers=False, present_every_s=0.5) as mute:
            job_id = sender.submit("acme")
            wait_for(lambda: bool(mute.dispatches))
        with PlayedMachine(settings, "other"):
            wait_for_status(settings, job_id, "completed")
    log = read_log(settings)
    log.check(PARTITIONS)
    # A report may be read before the heartbeat of the start: the two come through different inboxes.
    told = [name for name in story(log, job_id) if name != "JobStarted"]
    assert told == ["JobAccepted", "JobAssigned", "AttemptLost", "JobAssigned", "JobCompleted"]
    (lost,) = log.of(ev.AttemptLost)
    assert isinstance(lost, ev.AttemptLost) and not lost.started


def test_cancel_of_a_running_job_is_told_to_its_machine(settings: Settings, leading: Leading, sender: Sender) -> None:
    with leading(), PlayedMachine(settings, outcome=lambda _: None) as machine:
        job_id = sender.submit("acme")
        wait_for_status(settings, job_id, "running")
        sender.send(SUBMISSIONS, "acme", CancelJob(tenant="acme", job_id=job_id))
        wait_for_status(settings, job_id, "cancelled")
        sender.send(SUBMISSIONS, "acme", CancelJob(tenant="acme", job_id=job_id))
        wait_until(
            settings,
            lambda connection: connection.execute("SELECT code FROM command_refusals").fetchall() == [("ended",)],
        )
        assert [type(d) for d in machine.dispatches][:2] == [ev.AssignAttempt, ev.CancelAttempt]
    assert story(read_log(settings), job_id)[-3:] == ["CancelRequested", "JobCancelled", "CancelIgnored"]


def test_stale_report_is_evidence_and_changes_nothing(settings: Settings, leading: Leading, sender: Sender) -> None:
    with leading(), PlayedMachine(settings, outcome=lambda _: None) as machine:
        job_id = sender.submit("acme")
        wait_for_status(settings, job_id, "running")
        (assigned,) = [d for d in machine.dispatches if isinstance(d, ev.AssignAttempt)]
        for changes in ({"token": assigned.token - 1}, {"machine_id": "stranger"}, {"session": "older"}):
            machine.report(assigned, "failed", **changes)
        wait_until(
            settings,
            lambda connection: (
                connection.execute("SELECT jsonb_array_length(evidence) FROM attempts").fetchone() == (3,)
            ),
        )
        machine.report(assigned, "succeeded")
        wait_for_status(settings, job_id, "completed")
    log = read_log(settings)
    assert [event.code for event in log.of(ev.ReportIgnored) if isinstance(event, ev.ReportIgnored)] == [
        "stale_token",
        "other_machine",
        "other_session",
    ]
    assert log.ends()["acme", job_id] == 1


def test_submission_with_a_known_key_makes_one_job(settings: Settings, leading: Leading, sender: Sender) -> None:
    job_id = derive_job_id("acme", "nightly")
    with leading(), PlayedMachine(settings):
        for _ in range(3):
            sender.submit("acme", job_id=job_id, idempotency_key="nightly")
        wait_for_status(settings, job_id, "completed")
        sender.submit("acme", job_id=job_id, idempotency_key="nightly")
        sender.submit("acme", job_id=job_id, idempotency_key="nightly", name="another body")
        wait_until(
            settings,
            lambda connection: connection.execute("SELECT code FROM command_refusals").fetchall() == [("conflict",)],
        )
    log = read_log(settings)
    names = story(log, job_id)
    assert names.count("JobAccepted") == 1
    assert names.count("SubmissionRepeated") == 3
    assert names.count("JobRefused") == 1


def garbage() -> list[tuple[bytes | None, bytes | None, Any]]:
    """Key, value, headers of records that cannot be used."""

    def headed(kind: str) -> Any:
        return to_headers(Envelope(id="1", type=kind, source="/test", time="2026-01-01T00:00:00Z"))

    submit, heartbeat = "jobstream.job.submit.v1", "jobstream.lease.heartbeat.v1"
    return [
        (b"acme", None, headed(submit)),
        (b"acme", b"", headed(submit)),
        (b"acme", b"{", headed(submit)),
        (b"acme", b'{"tenant": 7}', headed(submit)),
        (b"acme", b"\xff\xfe\x00", headed(heartbeat)),
        (None, b"{}", None),
        (b"acme", b"{}", headed("jobstream.job.never_heard_of.v9")),
        (b"acme", b'{"tenant": "acme", "text": "\\u0000"}', headed(submit)),
        (b"acme", b"x" * (2 * 1024 * 1024), headed(submit)),
        (b"\xff", b"[" * 100_000, headed(submit)),
    ]


@pytest.mark.parametrize("topic", [SUBMISSIONS, COMPLETIONS, HEARTBEATS, MACHINES], ids=lambda topic: topic.name)
def test_garbage_becomes_dead_letters_and_stops_nobody(
    settings: Settings, leading: Leading, sender: Sender, topic: Any
) -> None:
    with leading(), PlayedMachine(settings):
        for key, value, headers in garbage():
            sender.send_raw(topic, key, value, headers)
        sender.flush()
        job_id = sender.submit("acme")
        wait_for_status(settings, job_id, "completed")
        wait_for(lambda: len(read_dead_letters(settings)) >= len(garbage()))
    letters = read_dead_letters(settings)
    assert len({(letter.partition, letter.offset) for letter in letters}) == len(letters) == len(garbage())
    assert {letter.topic for letter in letters} == {topic.name}
    assert all(letter.reason and letter.detail for letter in letters)
    read_log(settings).check(PARTITIONS)


def test_record_that_cannot_be_decided_stops_nobody(
    settings: Settings, leading: Leading, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = answers.answer

    def poisoned(state: Any, record: Input, grants: Any) -> Any:
        if b"poison" in (record.raw or b""):
            raise ZeroDivisionError("a mistake in the program")
        return real(state, record, grants)

    monkeypatch.setattr(f"{ROUNDS}.answer", poisoned)
    with leading(), PlayedMachine(settings):
        bad = sender.submit("acme", name="poison")
        good = sender.submit("acme")
        wait_for_status(settings, good, "completed")
    (letter,) = read_dead_letters(settings)
    assert letter.reason == "undecidable" and "ZeroDivisionError" in letter.detail
    assert story(read_log(settings), bad) == []


def test_record_that_breaks_a_round_is_found_and_set_aside(
    settings: Settings, leading: Leading, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evolution.evolve

    def poisoned(state: Any, event: Any, stamp: Any) -> None:
        real(state, event, stamp)
        if isinstance(event, ev.JobAccepted) and event.spec.name == "poison":
            raise ZeroDivisionError("a mistake in the program, after the state has changed")

    monkeypatch.setattr(f"{ROUNDS}.evolve", poisoned)
    with leading(), PlayedMachine(settings):
        before = sender.submit("acme")
        bad = sender.submit("acme", name="poison")
        after = sender.submit("acme")
        wait_for_status(settings, before, "completed")
        wait_for_status(settings, after, "completed")
    (letter,) = read_dead_letters(settings)
    assert letter.reason == "broke_a_round"
    log = read_log(settings)
    log.check(PARTITIONS)
    assert story(log, bad) == []


def test_job_that_breaks_a_round_is_quarantined(
    settings: Settings, leading: Leading, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evolution.evolve

    def poisoned(state: Any, event: Any, stamp: Any) -> None:
        real(state, event, stamp)
        if isinstance(event, ev.JobAssigned) and state.jobs[event.tenant, event.job_id].queue == "poison":
            raise ZeroDivisionError("a mistake in the program, after the state has changed")

    monkeypatch.setattr(f"{ROUNDS}.evolve", poisoned)
    with leading(), PlayedMachine(settings):
        bad = sender.submit("acme", queue="poison")
        good = sender.submit("acme")
        wait_for_status(settings, bad, "failed")
        wait_for_status(settings, good, "completed")
    (failed,) = read_log(settings).of(ev.JobFailed)
    assert isinstance(failed, ev.JobFailed) and failed.reason == "quarantined" and failed.job_id == bad


def test_doubtful_commit_begins_a_new_epoch_and_keeps_the_state(
    settings: Settings, leading: Leading, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Journal.commit
    doubted: list[int] = []

    def doubtful(journal: Journal, made: Round) -> int:
        appended_ms = real(journal, made)
        if made.records and len(doubted) < 2:
            doubted.append(made.number)
            raise Doubtful("the test says so")
        return appended_ms

    monkeypatch.setattr(Journal, "commit", doubtful)
    with leading(), PlayedMachine(settings):
        jobs = {("acme", sender.submit("acme")) for _ in range(10)}
        for _, job_id in jobs:
            wait_for_status(settings, job_id, "completed")
    log = read_log(settings)
    log.check(PARTITIONS)
    assert log.ends() == dict.fromkeys(jobs, 1)
    starts = [record.epoch_start.failover for record in log.rounds if record.epoch_start is not None]
    assert len(starts) == 3 and starts == [True, False, False]
