"""Row operations on a real database: whatever the batches, the rows are the fold of the log."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.leader_log import Entry, LeaderLog, accepted
from tests.support.projection import expected_rows, stored_rows

from jobstream.projector.fold import Record, Slice, fold
from jobstream.projector.writer import REFUSALS_KEPT_MS, PositionsMoved, Writer
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import LogBroken
from jobstream.runtime.postgres import connect
from jobstream.schemas import events as ev
from jobstream.schemas.ids import derive_job_id

PARTITIONS = 4
JOB = derive_job_id("acme", "one")


@pytest.fixture
def writer(migrated: Settings) -> Iterator[Writer]:
    opened = Writer(migrated)
    yield opened
    opened.close()


def with_offsets(entries: list[Entry], choose: random.Random) -> list[tuple[Entry, int]]:
    """Offsets as transactions leave them: growing, with holes."""
    ends: dict[tuple[str, int], int] = {}
    placed = []
    for entry in entries:
        key = entry.topic, entry.partition
        offset = ends.get(key, 0) + choose.choice([0, 0, 0, 1])
        ends[key] = offset + 1
        placed.append((entry, offset))
    return placed


def slices_of(writer: Writer, batch: list[tuple[Entry, int]]) -> list[Slice]:
    """What the consumer makes of a batch."""
    records: dict[tuple[str, int], list[Record]] = {}
    for entry, offset in batch:
        records.setdefault((entry.topic, entry.partition), []).append(Record(offset, entry.headers, entry.value))
    positions = writer.positions(records)
    found = [fold(positions[key], mine) for key, mine in records.items()]
    assert [part.broken for part in found] == [None] * len(found)
    return found


def write(writer: Writer, *batch: tuple[Entry, int]) -> None:
    writer.apply(slices_of(writer, list(batch)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch_max", [1, 7, 400])
def test_rows_are_the_fold_of_the_log_however_it_is_cut(
    writer: Writer, connection: psycopg.Connection[Any], seed: int, batch_max: int
) -> None:
    choose = random.Random(seed)
    placed = with_offsets(LeaderLog(seed=seed, partitions=PARTITIONS).entries(90 if batch_max > 1 else 40), choose)
    at = 0
    while at < len(placed):
        size = choose.randint(1, batch_max)
        write(writer, *placed[at : at + size])
        at += size
    expected, stored = expected_rows(placed), stored_rows(connection)
    for table in expected:
        assert stored[table] == expected[table]
    statuses = {row["status"] for row in expected["jobs"].values()}
    assert batch_max == 1 or {"completed", "failed", "cancelled", "running", "assigned", "queued"} <= statuses


def test_a_batch_is_applied_once_only(writer: Writer, connection: psycopg.Connection[Any]) -> None:
    entry = LeaderLog(seed=1, partitions=1).entry(accepted("acme", JOB))
    slices = slices_of(writer, [(entry, 0)])
    writer.apply(slices)
    before = stored_rows(connection)
    with pytest.raises(PositionsMoved):
        writer.apply(slices)
    assert stored_rows(connection) == before


def test_of_two_writers_of_one_batch_one_wins(migrated: Settings, connection: psycopg.Connection[Any]) -> None:
    log = LeaderLog(seed=3, partitions=PARTITIONS)
    placed = with_offsets(log.entries(60), random.Random(3))
    writers = [Writer(migrated) for _ in range(4)]
    slices = slices_of(writers[0], placed)
    outcomes: list[str] = []

    def attempt(writer: Writer, mine: list[Slice]) -> None:
        try:
            writer.apply(mine)
            outcomes.append("written")
        except PositionsMoved:
            outcomes.append("moved")

    # The same partitions in other orders: nobody waits for another in a circle.
    threads = [
        threading.Thread(target=attempt, args=(writer, slices[shift:] + slices[:shift]))
        for shift, writer in enumerate(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["moved", "moved", "moved", "written"]
    assert stored_rows(connection)["jobs"] == expected_rows(placed)["jobs"]
    for writer in writers:
        writer.close()


def test_a_row_that_is_there_already_is_a_broken_promise(writer: Writer, connection: psycopg.Connection[Any]) -> None:
    entry = LeaderLog(seed=1, partitions=1).entry(accepted("acme", JOB))
    write(writer, (entry, 0))
    connection.execute("UPDATE projection_offsets SET next_offset = 0, next_sequence = 0")
    with pytest.raises(LogBroken, match="jobs_pkey"):
        write(writer, (entry, 0))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM jobs", rf"job {JOB} of tenant acme"),
        ("UPDATE jobs SET token = 8", rf"job {JOB} of tenant acme"),
        ("UPDATE jobs SET ended_at = now()", rf"job {JOB} of tenant acme"),
        ("UPDATE jobs SET last_offset = 5", rf"job {JOB} of tenant acme"),
        ("DELETE FROM attempts", r"update attempts"),
        ("UPDATE attempts SET token = 8", r"update attempts"),
        ("UPDATE attempts SET ended_at = now()", r"update attempts"),
    ],
)
def test_a_row_that_is_not_what_the_event_follows_from_is_a_broken_promise(
    writer: Writer, connection: psycopg.Connection[Any], damage: str, said: str
) -> None:
    log = LeaderLog(seed=1, partitions=1)
    lease: dict[str, Any] = {"tenant": "acme", "job_id": JOB, "attempt": 1, "token": 7}
    write(writer, (log.entry(accepted("acme", JOB)), 0))
    write(writer, (log.entry(ev.JobAssigned(**lease, machine_id="m", session="s", presence=1)), 1))
    connection.execute(damage.encode())
    before = stored_rows(connection)
    with pytest.raises(LogBroken, match=said):
        write(writer, (log.entry(ev.JobStarted(**lease, started_at_ms=1, seen_at_ms=2)), 2))
    assert stored_rows(connection) == before


def test_a_number_that_no_column_takes_is_a_broken_promise_and_not_an_outage(writer: Writer) -> None:
    log = LeaderLog(seed=1, partitions=1)
    lease: dict[str, Any] = {"tenant": "acme", "job_id": JOB, "attempt": 2**40, "token": 7}
    write(writer, (log.entry(accepted("acme", JOB)), 0))
    with pytest.raises(LogBroken, match="out of range"):
        write(writer, (log.entry(ev.JobAssigned(**lease, machine_id="m", session="s", presence=1)), 1))


def test_an_unknown_machine_is_a_broken_promise(writer: Writer) -> None:
    log = LeaderLog(seed=1, partitions=1)
    with pytest.raises(LogBroken, match="update machines"):
        write(writer, (log.entry(ev.MachineLost(machine_id="m", session="s")), 0))


def test_evidence_is_bounded(writer: Writer, connection: psycopg.Connection[Any]) -> None:
    log = LeaderLog(seed=1, partitions=1)
    lease: dict[str, Any] = {"tenant": "acme", "job_id": JOB, "attempt": 1}
    report = ev.ReportIgnored(**lease, token=1, machine_id="m", session="old", reported="finished", code="stale_token")
    write(writer, (log.entry(accepted("acme", JOB)), 0))
    write(writer, (log.entry(ev.JobAssigned(**lease, token=7, machine_id="m", session="s", presence=1)), 1))
    for first in (2, 17):
        write(writer, *((log.entry(report), first + at) for at in range(15)))
    (row,) = stored_rows(connection)["attempts"].values()
    assert len(row["evidence"]) == 20


def test_evidence_may_name_an_attempt_that_no_column_takes(writer: Writer, connection: psycopg.Connection[Any]) -> None:
    """The number is what an agent reported, not the leader's: it must not stop the partition."""
    log = LeaderLog(seed=1, partitions=1)
    names: dict[str, Any] = {"tenant": "acme", "job_id": JOB, "attempt": 2**63 - 1, "token": 1}
    write(writer, (log.entry(accepted("acme", JOB)), 0))
    report = ev.ReportIgnored(**names, machine_id="m", session="s", reported="lost", code="no_lease")
    write(writer, (log.entry(report), 1))
    assert not stored_rows(connection)["attempts"]


def test_old_refusals_go(writer: Writer, connection: psycopg.Connection[Any]) -> None:
    log = LeaderLog(seed=1, partitions=1)

    def refuse(name: str) -> Entry:
        return log.entry(ev.JobRefused(tenant="acme", job_id=JOB, command_id=name, code="conflict", detail="other"))

    write(writer, (refuse("old"), 0))
    log.round += REFUSALS_KEPT_MS // 137 + 1
    write(writer, (refuse("new"), 1))
    assert [row["command_id"] for row in stored_rows(connection)["command_refusals"].values()] == ["new"]


def test_a_commit_notifies_with_the_new_positions(writer: Writer, migrated: Settings) -> None:
    with connect(migrated, autocommit=True) as listener:
        listener.execute(f"LISTEN {migrated.postgres_schema}_projected".encode())
        write(writer, (LeaderLog(seed=1, partitions=1).entry(accepted("acme", JOB)), 41))
        (found,) = listener.notifies(timeout=10, stop_after=1)
    assert found.payload == "lifecycle/0/42"
