"""Writes a batch: rows and positions in one transaction, so that each event is applied exactly once.

Commits are not waited for on disk (`synchronous_commit=off`): a database that crashes loses its last rows together with
their positions, and they are applied again from the log.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, LiteralString

import orjson
import psycopg

from jobstream.projector import statements as sql
from jobstream.projector.changes import NewAttempt, NewJob, NewMachine
from jobstream.projector.fold import Position, Slice
from jobstream.projector.migrate import require_migrated
from jobstream.runtime.config import Settings
from jobstream.runtime.errors import LogBroken, Unavailable
from jobstream.runtime.faults import fault_point
from jobstream.runtime.postgres import connection_arguments

log = logging.getLogger(__name__)

KEY_KEPT_HOURS: Final = 48  # how long a leader knows the id of a job that has ended, at least
SESSION_OPTIONS: Final = (
    " -c synchronous_commit=off -c jit=off"
    # Rows are always found by their keys. Of a table that has grown since it was last analysed the planner believes that
    # reading all of it is cheaper, once for the batch or even for each row: 1,000 times slower.
    " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_material=off"
    # A projector that hangs in a transaction holds its partitions' rows: not for longer than this.
    " -c idle_in_transaction_session_timeout=15s -c statement_timeout=60s -c lock_timeout=30s"
)
SOCKET_TIMEOUT_MS: Final = 15_000  # a database whose host has vanished is noticed
NOTIFY_BYTES_MAX: Final = 7_900  # Postgres takes 8,000; longer ones are sent empty: "anything may have changed"
REFUSALS_KEPT_MS: Final = 7 * 24 * 3600 * 1000  # an API that asks waits for seconds
REFUSALS_EXPIRE_EVERY_MS: Final = 10 * 60 * 1000

PartitionKey = tuple[str, int]  # topic without prefix, partition


class PositionsMoved(Exception):
    """Stored positions are not the expected ones: another projector wrote, or the database went back. Nothing was written."""


class Writer:
    """One connection, made when it is needed. Methods raise Unavailable where Postgres cannot be used now."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._channel = f"{settings.postgres_schema}_projected"
        self._connection: psycopg.Connection[Any] | None = None
        self._refusals_expired_ms = 0

    def check(self) -> None:
        """Raises ConfigurationError where the database does not fit this version of the code."""
        try:
            require_migrated(self._open(), self._settings)
        except psycopg.Error as error:
            raise self._unavailable(error) from error

    def positions(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Position]:
        """Where to go on in each partition: at its beginning where nothing is stored yet."""
        wanted = _json([{"topic": topic, "partition": partition} for topic, partition in keys])
        try:
            with self._open().transaction():
                self._execute(sql.MAKE_POSITIONS, wanted)
                rows = self._execute(sql.POSITIONS, wanted).fetchall()
        except psycopg.Error as error:
            raise self._unavailable(error) from error
        return {
            (topic, partition): Position(
                topic=topic,
                partition=partition,
                next_offset=next_offset,
                next_sequence=next_sequence,
                last_epoch=last_epoch,
                last_round=last_round,
                round_offset=round_offset,
            )
            for topic, partition, next_offset, next_sequence, last_epoch, last_round, round_offset in rows
        }

    def apply(self, slices: Sequence[Slice]) -> None:
        """Write one batch. Raises PositionsMoved, or LogBroken where the rows are not what the events follow from."""
        fault_point("projector.before_write")
        try:
            with self._open().transaction():
                self._advance(slices)
                self._write_rows(slices)
                self._expire_refusals(max(part.newest_ms for part in slices))
                self._execute(sql.NOTIFY, self._channel, _payload(slices))
                fault_point("projector.before_commit")
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise LogBroken(f"Postgres refuses a row: {str(error).strip()}") from error
        except psycopg.Error as error:
            raise self._unavailable(error) from error
        fault_point("projector.after_commit")

    def mark_stopped(self, position: Position, why: str) -> None:
        """Let everybody see in `projection_offsets` that this partition has stopped, and why."""
        try:
            with self._open().transaction():
                self._execute(sql.STOP, why, position.topic, position.partition, position.next_offset)
        except psycopg.Error as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _advance(self, slices: Sequence[Slice]) -> None:
        moves = [
            {
                "topic": part.after.topic,
                "partition": part.after.partition,
                "expected_offset": part.before.next_offset,
                "next_offset": part.after.next_offset,
                "next_sequence": part.after.next_sequence,
                "last_epoch": part.after.last_epoch,
                "last_round": part.after.last_round,
                "round_offset": part.after.round_offset,
            }
            for part in slices
        ]
        if self._execute(sql.ADVANCE, _json(moves)).rowcount != len(moves):
            raise PositionsMoved

    def _write_rows(self, slices: Sequence[Slice]) -> None:
        jobs = _sorted(change for part in slices for change in part.changes.jobs.items())
        attempts = _sorted(change for part in slices for change in part.changes.attempts.items())
        machines = _sorted(change for part in slices for change in part.changes.machines.items())
        if new := [job for job in jobs if isinstance(job, NewJob)]:
            if keyed := [job for job in new if job.idempotency_key is not None]:
                for statement in (sql.REMOVE_OUTLIVED_ATTEMPTS, sql.REMOVE_OUTLIVED_JOBS):
                    self._execute(statement, _json(keyed), KEY_KEPT_HOURS)
            self._execute(sql.INSERT_JOBS, _json(new))
        if changed := [job for job in jobs if not isinstance(job, NewJob)]:
            self._update_jobs(changed, required=sum(job.required for job in changed))
        self._exactly(
            sql.REMOVE_ATTEMPTS,
            [
                {"tenant": tenant, "job_id": job_id, "attempt": number, "token": token}
                for (tenant, job_id, number), token in sorted(
                    item for part in slices for item in part.changes.removed.items()
                )
            ],
        )
        self._exactly(sql.INSERT_ATTEMPTS, [attempt for attempt in attempts if isinstance(attempt, NewAttempt)])
        self._exactly(sql.UPDATE_ATTEMPTS, [attempt for attempt in attempts if not isinstance(attempt, NewAttempt)])
        self._where_there_is_one(slices)
        self._exactly(sql.ADMIT_MACHINES, [machine for machine in machines if isinstance(machine, NewMachine)])
        self._exactly(sql.UPDATE_MACHINES, [machine for machine in machines if not isinstance(machine, NewMachine)])
        if refusals := _sorted(refusal for part in slices for refusal in part.changes.refusals.items()):
            self._execute(sql.INSERT_REFUSALS, _json(refusals))

    def _update_jobs(self, changed: list[Any], *, required: int) -> None:
        operations = _json(changed)
        row = self._execute(sql.UPDATE_JOBS, operations).fetchone()
        if row is None or row[0] != required:
            missed = ", ".join(name for (name,) in self._execute(sql.MISSED_JOBS, operations))
            raise LogBroken(f"no row that the events follow from: {missed}")

    def _where_there_is_one(self, slices: Sequence[Slice]) -> None:
        """Changes of attempts that may not exist: evidence, and what is open of a job that ended without an attempt."""
        evidence = [
            {"tenant": tenant, "job_id": job_id, "attempt": number, "evidence": reports[: sql.EVIDENCE_MAX]}
            for (tenant, job_id, number), reports in sorted(
                item for part in slices for item in part.changes.evidence.items()
            )
        ]
        if evidence:
            self._execute(sql.ADD_EVIDENCE, _json(evidence))
        closed = [
            {"tenant": tenant, "job_id": job_id, "ended_at": ended_at, "outcome": outcome}
            for (tenant, job_id), (ended_at, outcome) in sorted(
                item for part in slices for item in part.changes.closed.items()
            )
        ]
        if closed:
            self._execute(sql.CLOSE_ATTEMPTS, _json(closed))

    def _exactly(self, statement: LiteralString, operations: list[Any]) -> None:
        """Run it; each operation must have met exactly its row."""
        if not operations:
            return
        met = self._execute(statement, _json(operations)).rowcount
        if met != len(operations):
            verb, _, rest = statement.strip().partition(" ")
            raise LogBroken(
                f"{len(operations) - met} of {len(operations)} rows are not what the events follow from "
                f"({verb.lower()} {' '.join(rest.split()[:2])})"
            )

    def _expire_refusals(self, now_ms: int) -> None:
        if now_ms - self._refusals_expired_ms >= REFUSALS_EXPIRE_EVERY_MS:
            self._refusals_expired_ms = now_ms
            self._execute(sql.EXPIRE_REFUSALS, now_ms - REFUSALS_KEPT_MS)

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            arguments = connection_arguments(self._settings)
            arguments["options"] += SESSION_OPTIONS
            arguments["application_name"] = "jobstream-projector"
            try:
                self._connection = psycopg.connect(
                    **arguments,
                    autocommit=True,  # transactions are explicit blocks
                    tcp_user_timeout=SOCKET_TIMEOUT_MS,
                    keepalives_idle=5,
                    keepalives_interval=5,
                    keepalives_count=2,
                )
            except psycopg.Error as error:
                raise Unavailable(f"Postgres does not answer: {str(error).strip()}") from error
        return self._connection

    def _execute(self, statement: LiteralString, *parameters: Any) -> psycopg.Cursor[Any]:
        # Never a new connection here: one that broke inside a transaction must not go on outside of it.
        assert self._connection is not None
        return self._connection.execute(statement, parameters)

    def _unavailable(self, error: psycopg.Error) -> Unavailable:
        """What cannot be written now, but can be later: the connection is given up, since its state is not known."""
        self.close()
        return Unavailable(f"Postgres cannot be written: {str(error).strip()}")


def _json(operations: list[Any]) -> str:
    return orjson.dumps(operations).decode()


def _sorted(items: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Operations in the order of their keys, so that no two transactions lock rows in opposite orders."""
    return [operation for _, operation in sorted(items, key=_key)]


def _key(item: tuple[Any, Any]) -> Any:
    return item[0]


def _payload(slices: Sequence[Slice]) -> str:
    """`topic/partition/next_offset` of what moved, separated by spaces; empty where that would be too long."""
    words = " ".join(f"{part.after.topic}/{part.after.partition}/{part.after.next_offset}" for part in slices)
    return words if len(words) <= NOTIFY_BYTES_MAX else ""
