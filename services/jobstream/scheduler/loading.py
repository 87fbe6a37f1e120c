"""Load the leader's state from the projection, in one snapshot with the offsets up to which it is right."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
import psycopg

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import Unavailable
from jobstream.runtime.postgres import connect
from jobstream.scheduler.evolve import add_job, add_machine, sorted_labels
from jobstream.scheduler.memory import WINDOW_MS
from jobstream.scheduler.state import Job, Lease, Machine, PartitionKey, State

log = logging.getLogger(__name__)

KEEP_ALIVE_ROWS: Final = 5_000  # rows between two signs of life to the election: 50 ms
SLACK_MS: Final = 3_600_000  # ends are forgotten in generations: load those of an hour more

LOG_OFFSETS: Final = """
    SELECT topic, partition, next_offset, next_sequence, last_epoch, last_round, round_offset FROM projection_offsets
"""
LIVE_JOBS: Final = """
    COPY (
        SELECT tenant, job_id::text, queue, priority::int4, digest,
               convert_to(spec::text, 'UTF8'), accepted, status, attempt, lost_attempts, cancel_requested,
               machine_id, session, token, presence
        FROM jobs WHERE status NOT IN ('completed', 'failed', 'cancelled') ORDER BY accepted
    ) TO STDOUT (FORMAT BINARY)
"""
LIVE_JOB_TYPES: Final = (
    *("text", "text", "text", "int4", "text", "bytea", "int8", "text", "int4", "int4", "bool"),
    *("text", "text", "int8", "int8"),
)
ENDED_JOBS: Final = """
    SELECT tenant, job_id::text, status, digest, (extract(epoch FROM ended_at) * 1000)::int8
    FROM jobs
    WHERE ended_at > (SELECT max(ended_at) FROM jobs) - make_interval(secs => %s) ORDER BY ended_at
"""
MACHINES: Final = """
    SELECT machine_id, session, boot_id, status, cpu_millis, memory_mib, labels,
           (extract(epoch FROM changed_at) * 1000)::int8
    FROM machines
    WHERE status IN ('up', 'draining') OR (status = 'lost' AND changed_at > now() - make_interval(secs => %s))
    ORDER BY machine_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """How far a partition of the log is in the state. Its newest round begins at `round_offset`: that round may be torn."""

    next_offset: int
    round_offset: int


def load_state(settings: Settings, keep_alive: Callable[[], object]) -> tuple[State, dict[PartitionKey, Projected]]:
    """The state as projected, and how far in each partition of the log that is.

    `keep_alive` is called every now and then. Raises Unavailable where Postgres does not answer.
    """
    state = State(partitions=settings.tenant_partitions)
    projected: dict[PartitionKey, Projected] = {}
    window_s = (WINDOW_MS + SLACK_MS) / 1000
    try:
        with connect(settings) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            for topic, partition, next_offset, next_sequence, epoch, number, begin in connection.execute(LOG_OFFSETS):
                state.epoch, state.round = max(state.epoch, epoch), max(state.round, number)
                projected[topic, partition] = Projected(next_offset=next_offset, round_offset=begin)
                state.next_sequence[topic, partition] = next_sequence
            for row in connection.execute(MACHINES, [window_s]):
                add_machine(state, _machine(row))
            _load_jobs(connection, state, keep_alive)
            with connection.cursor(name="ended_jobs") as ended:
                ended.itersize = KEEP_ALIVE_ROWS
                ended.execute(ENDED_JOBS, [window_s])
                for number, (tenant, job_id, status, digest, ended_ms) in enumerate(ended):
                    state.memory.add(tenant, job_id, status, digest, ended_ms)
                    if number % KEEP_ALIVE_ROWS == 0:
                        keep_alive()
    except psycopg.Error as error:
        raise Unavailable(f"the state cannot be loaded from Postgres: {str(error).strip()}") from error
    log.info("loaded %d live jobs, %d ended, %d machines", len(state.jobs), len(state.memory), len(state.machines))
    return state, projected


def _load_jobs(connection: psycopg.Connection[Any], state: State, keep_alive: Callable[[], object]) -> None:
    with connection.cursor() as cursor, cursor.copy(LIVE_JOBS) as copy:
        copy.set_types(LIVE_JOB_TYPES)
        for number, row in enumerate(copy.rows()):
            job = _job(row)
            add_job(state, job)
            if number % KEEP_ALIVE_ROWS == 0:
                keep_alive()


def _job(row: tuple[Any, ...]) -> Job:
    tenant, job_id, queue, priority, digest, spec_json, accepted, status, attempt, lost, cancel = row[:11]
    machine_id, session, token, presence = row[11:]
    lease = None
    if status in ("assigned", "running"):
        lease = Lease(
            token=token,
            attempt=attempt,
            machine_id=machine_id,
            session=session,
            presence=presence,
            started=status == "running",
        )
    spec = orjson.loads(spec_json)
    return Job(
        tenant=tenant,
        job_id=job_id,
        queue=queue,
        priority=priority,
        cpu_millis=spec["resources"]["cpu_millis"],
        memory_mib=spec["resources"]["memory_mib"],
        required_labels=sorted_labels(spec.get("required_labels", {})),
        digest=digest,
        spec_json=bytes(spec_json),
        accepted=accepted,
        status=status,
        attempt=attempt,
        lost_attempts=lost,
        cancel_requested=cancel,
        lease=lease,
    )


def _machine(row: tuple[Any, ...]) -> Machine:
    machine_id, session, boot_id, status, cpu, memory, labels, changed_ms = row
    return Machine(
        machine_id=machine_id,
        session=session,
        boot_id=boot_id,
        status=status,
        cpu_millis=cpu,
        memory_mib=memory,
        labels=labels,
        lost_at_ms=changed_ms,
    )
