"""The projector against a real log: each event is applied exactly once, whatever ends, moves or breaks."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr
from tests.integration.projector.conftest import PARTITIONS
from tests.support.gate import PostgresGate
from tests.support.leader_log import LeaderLog, accepted, admitted
from tests.support.projecting import (
    PATIENCE_S,
    Log,
    RunProjector,
    StartProjector,
    assert_rows,
    run_projector,
    stored_positions,
    wait_for_positions,
    wait_until,
)
from tests.support.projection import stored_rows

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import ConfigurationError, LogBroken
from jobstream.runtime.kafka import make_admin
from jobstream.schemas import events as ev
from jobstream.schemas.ids import derive_job_id

FAULTS = ["projector.before_write", "projector.before_commit", "projector.after_commit"]


def stopped(connection: psycopg.Connection[Any]) -> dict[tuple[str, int], str]:
    """Why partitions have stopped, as everybody can see."""
    rows = connection.execute("SELECT topic, partition, stopped FROM projection_offsets WHERE stopped IS NOT NULL")
    return {(topic, partition): why for topic, partition, why in rows}


def test_rows_equal_a_fold_of_the_log(log: Log, projecting: RunProjector, connection: psycopg.Connection[Any]) -> None:
    made = LeaderLog(seed=11, partitions=PARTITIONS)
    log.write(made.rounds(40))
    with projecting() as projector:
        wait_for_positions(log.settings, log.ends)
        for entries in made.rounds(30):  # one by one, as they come
            log.write([entries])
        wait_for_positions(log.settings, log.ends)
    assert_rows(connection, log)
    assert projector.applied == len(log.written)


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_point_each_event_is_applied_once(
    log: Log, start_projector: StartProjector, connection: psycopg.Connection[Any], fault: str
) -> None:
    made = LeaderLog(seed=12, partitions=PARTITIONS)
    log.write(made.rounds(10))
    victim = start_projector(f"{fault}:3")
    while victim.poll() is None:
        log.write(made.rounds(1))
        wait_until(log.settings, lambda opened: victim.poll() is not None or at_end(opened, log))
    victim.communicate(timeout=PATIENCE_S)
    assert victim.returncode == -signal.SIGKILL
    assert fault == "projector.after_commit" or not at_end(connection, log)
    log.write(made.rounds(10))
    heir = start_projector()
    wait_for_positions(log.settings, log.ends)
    heir.send_signal(signal.SIGTERM)
    _, errors = heir.communicate(timeout=PATIENCE_S)
    assert heir.returncode == 0, errors
    assert_rows(connection, log)


def at_end(connection: psycopg.Connection[Any], log: Log) -> bool:
    return stored_positions(connection).items() >= log.ends.items()


def test_two_share_the_partitions_and_hand_over(
    log: Log, start_projector: StartProjector, connection: psycopg.Connection[Any]
) -> None:
    made = LeaderLog(seed=13, partitions=PARTITIONS, tenants=12)
    first = start_projector()
    log.write(made.rounds(20))
    wait_for_positions(log.settings, log.ends)
    second = start_projector()
    read_until(second, "given")
    log.write(made.rounds(20))
    wait_for_positions(log.settings, log.ends)
    first.kill()
    log.write(made.rounds(20))
    wait_for_positions(log.settings, log.ends)
    assert_rows(connection, log)


def test_a_gap_stops_its_partition_and_no_other(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any]
) -> None:
    made = LeaderLog(seed=14, partitions=PARTITIONS)
    log.write(made.rounds(10))
    tenants = {made.entry(accepted(f"t-{n}", derive_job_id("t", "k"))).partition: f"t-{n}" for n in range(40)}
    # The sequence numbers that were taken for `tenants` are never written: a gap in every partition.
    with (
        pytest.raises(LogBroken, match="sequence number"),
        projecting() as projector,
    ):
        wait_for_positions(log.settings, log.ends)
        healthy = LeaderLog(seed=15, partitions=PARTITIONS)
        healthy.round = made.round
        healthy._sequences = {key: number for key, number in made._sequences.items() if key[0] == "fleet"}
        broken = made.entry(accepted(tenants[2], derive_job_id(tenants[2], "after the gap")))
        log.write_raw([(broken.topic, broken.partition, broken.headers, broken.value)])
        log.write([[healthy.entry(admitted("healthy"))]])
        wait_for_positions(log.settings, log.ends)
        wait_until(log.settings, lambda opened: bool(stopped(opened)))
        assert set(projector.stopped) == {("lifecycle", 2)} == set(stopped(connection))
        assert "are missing" in projector.stopped["lifecycle", 2]
    assert_rows(connection, log)


@pytest.mark.parametrize(
    ("type_name", "value", "said"),
    [
        (b"jobstream.job.started.v9", b"{}", "unknown_type"),
        (b"jobstream.job.started.v1", b"{", "json"),
        (b"jobstream.job.started.v1", b"{}", "schema"),
    ],
)
def test_an_unreadable_record_stops_until_a_reader_knows_it(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any], type_name: bytes, value: bytes, said: str
) -> None:
    made = LeaderLog(seed=16, partitions=1)
    job_id = derive_job_id("acme", "one")
    log.write([[made.entry(accepted("acme", job_id))]])
    unreadable = made.entry(ev.CancelRequested(tenant="acme", job_id=job_id, command_id="c"))
    headers = [(name, type_name if name == "ce_type" else text) for name, text in unreadable.headers]
    log.write_raw([("lifecycle", 0, headers, value)])
    with pytest.raises(LogBroken, match=said), projecting():
        wait_until(log.settings, lambda opened: bool(stopped(opened)))
    assert said in stopped(connection)["lifecycle", 0]
    assert_rows(connection, log)
    # A newer version reads it: what comes after the alarm clears it. Here the record is taken as read by hand.
    connection.execute("UPDATE projection_offsets SET next_offset = 4, next_sequence = 2 WHERE next_offset = 1")
    log.write([[made.entry(ev.CancelRequested(tenant="acme", job_id=job_id, command_id="d"))]])
    with projecting():
        wait_for_positions(log.settings, log.ends)
    assert stopped(connection) == {}


def test_a_contradiction_in_the_middle_of_a_batch_stops_right_there(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any]
) -> None:
    made = LeaderLog(seed=17, partitions=1)
    jobs = [derive_job_id("acme", str(number)) for number in range(6)]
    log.write([[made.entry(accepted("acme", job_id)) for job_id in jobs[:3]]])
    unknown = made.entry(ev.CancelRequested(tenant="acme", job_id=derive_job_id("acme", "x"), command_id="c"))
    after = [made.entry(accepted("acme", job_id)) for job_id in jobs[3:]]
    log.write_raw([(entry.topic, entry.partition, entry.headers, entry.value) for entry in (unknown, *after)])
    with pytest.raises(LogBroken, match="lifecycle/0 at offset 4: no row"), projecting():
        wait_until(log.settings, lambda opened: bool(stopped(opened)))
    assert_rows(connection, log)


def test_a_database_that_went_back_is_caught_up_again(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any]
) -> None:
    made = LeaderLog(seed=18, partitions=PARTITIONS)
    log.write(made.rounds(20))
    tables = ("jobs", "attempts", "machines", "command_refusals", "projection_offsets")
    with projecting():
        wait_for_positions(log.settings, log.ends)
        for table in tables:
            connection.execute(f"CREATE TABLE old_{table} AS SELECT * FROM {table}".encode())
        log.write(made.rounds(20))
        wait_for_positions(log.settings, log.ends)
        with connection.transaction():  # what a fail-over to a replica that lags does
            for table in tables:
                connection.execute(f"DELETE FROM {table}".encode())
                connection.execute(f"INSERT INTO {table} SELECT * FROM old_{table}".encode())
        log.write(made.rounds(20))
        # A partition is looked at when something comes: each gets something.
        for number in range(40):
            log.write([[made.entry(accepted(f"t-{number}", derive_job_id("t", "k")))]])
        for number in range(40):
            log.write([[made.entry(admitted(f"more-{number}"))]])
        wait_for_positions(log.settings, log.ends)
    assert_rows(connection, log)


def test_records_that_retention_removed_unread_are_named(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any]
) -> None:
    from confluent_kafka import TopicPartition

    made = LeaderLog(seed=19, partitions=1)
    for number in range(5):
        log.write([[made.entry(accepted("acme", derive_job_id("acme", str(number))))]])
    topic = f"{log.settings.topic_prefix}lifecycle"
    admin = make_admin(log.settings)  # kept: without it nothing answers
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        future.result(PATIENCE_S)
    with pytest.raises(LogBroken, match="offsets 0 to 5 were removed before they were read"), projecting():
        wait_until(log.settings, lambda opened: bool(stopped(opened)))
    assert stored_rows(connection)["jobs"] == {}


def test_a_log_that_ends_before_the_position_is_named(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any]
) -> None:
    made = LeaderLog(seed=20, partitions=1)
    log.write([[made.entry(accepted("acme", derive_job_id("acme", "one")))]])
    with projecting():
        wait_for_positions(log.settings, log.ends)
    connection.execute("UPDATE projection_offsets SET next_offset = 500 WHERE topic = 'lifecycle' AND partition = 0")
    with pytest.raises(LogBroken, match=r"ends at offset 2, but was read up to 500"), projecting():
        wait_until(log.settings, lambda opened: bool(stopped(opened)))


def test_while_postgres_is_away_nothing_is_lost(
    log: Log, ready: Settings, connection: psycopg.Connection[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = LeaderLog(seed=21, partitions=PARTITIONS)
    log.write(made.rounds(10))
    with PostgresGate(tmp_path, ready.postgres.get_secret_value()) as gate:
        through = ready.model_copy(update={"postgres": SecretStr(gate.url)})
        with run_projector(through):
            wait_for_positions(ready, log.ends)
            gate.shut()
            log.write(made.rounds(20))
            wait_until(ready, lambda opened: caplog.text.count("does not answer") >= 3)
            assert stored_positions(connection).items() != log.ends.items()
            gate.open()
            wait_for_positions(ready, log.ends)
            for _ in range(5):  # and while it is written to
                log.write(made.rounds(3))
                gate.shut()
                gate.open()
            wait_for_positions(ready, log.ends)
    assert_rows(connection, log)


def test_a_table_that_is_away_is_waited_for(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = LeaderLog(seed=22, partitions=PARTITIONS)
    with projecting():
        connection.execute("ALTER TABLE jobs RENAME TO jobs_away")
        log.write(made.rounds(20))
        wait_until(log.settings, lambda opened: "cannot be written" in caplog.text)
        connection.execute("ALTER TABLE jobs_away RENAME TO jobs")
        wait_for_positions(log.settings, log.ends)
    assert_rows(connection, log)


def test_refuses_a_database_that_was_not_migrated(ready: Settings, projecting: RunProjector) -> None:
    with psycopg.connect(ready.postgres.get_secret_value(), autocommit=True) as opened:
        opened.execute(f"DROP SCHEMA {ready.postgres_schema} CASCADE".encode())
    with pytest.raises(ConfigurationError, match="jobstream migrate"), projecting():
        pass


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """Lines of a process's log up to one with a word."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"{word!r} was not said:\n{seen}")


def test_key_that_is_used_again_after_the_window_makes_the_job_anew(
    log: Log, projecting: RunProjector, connection: psycopg.Connection[Any]
) -> None:
    made = LeaderLog(seed=1, partitions=PARTITIONS)
    job_id = derive_job_id("acme", "nightly")
    first = accepted("acme", job_id, key="nightly", number=1)
    assigned = ev.JobAssigned(
        tenant="acme", job_id=job_id, attempt=1, token=65_537, machine_id="m", session="s", presence=1
    )
    end = ev.AttemptEnd(attempt=1, token=65_537, machine_id="m", outcome="succeeded", exit_code=0)
    with projecting():
        log.write([[made.entry(first), made.entry(assigned, 1)]])
        log.write([[made.entry(ev.JobCompleted(tenant="acme", job_id=job_id, end=end))]])
        wait_for_positions(log.settings, log.ends)
        made.round += 49 * 3_600_000 // 137  # two days later in the log's time
        log.write([[made.entry(accepted("acme", job_id, key="nightly", number=2))]])
        wait_for_positions(log.settings, log.ends)
    assert connection.execute("SELECT name, status, attempt FROM jobs").fetchall() == [("job 2", "queued", 0)]
    assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (0,)
    assert stopped(connection) == {}
