"""The projector's SQL. Each statement takes one parameter: a JSON list of row operations (see `changes`).

JSON, since psycopg takes 50 µs to make a row of arrays for `unnest`, and all of this 15 µs, server included (measured
with 24 columns). Lists come sorted by key. `to_timestamp(ms / 1000.0)` is exact: a double holds microseconds until 2100.
"""

# ruff: noqa: S608 -- what is put together here are constants of this file; values travel as parameters alone

from typing import Final, LiteralString

_JOB_CHANGE: Final = """
    tenant text, job_id uuid, first_offset bigint, last_offset bigint, required boolean, expected_token bigint,
    status text, attempt integer, lost_attempts integer, cancel_requested boolean,
    lease boolean, machine_id text, session text, token bigint, presence bigint,
    started boolean, started_at float8, started_fallback float8, ended_at float8,
    exit_code smallint, signal smallint, reason text, detail text"""

_ATTEMPT_CHANGE: Final = """
    tenant text, job_id uuid, attempt integer, token bigint, started_at float8, started_fallback float8,
    ended_at float8, outcome text, exit_code smallint, signal smallint, detail text"""

_MACHINE_CHANGE: Final = "machine_id text, session text, last_offset bigint, status text, changed_at float8"

# Locks in one order, so that two projectors that both believe in their partitions never hold what the other waits for.
ADVANCE: Final[LiteralString] = """
WITH held AS (
    SELECT u.*
    FROM projection_offsets p
    JOIN json_to_recordset(%s) AS u(
        topic text, partition integer, expected_offset bigint, next_offset bigint, next_sequence bigint,
        last_epoch bigint, last_round bigint, round_offset bigint
    ) USING (topic, partition)
    ORDER BY p.topic, p.partition
    FOR UPDATE OF p
)
UPDATE projection_offsets p
SET next_offset = held.next_offset, next_sequence = held.next_sequence, last_epoch = held.last_epoch,
    last_round = held.last_round, round_offset = held.round_offset, stopped = NULL
FROM held
WHERE p.topic = held.topic AND p.partition = held.partition AND p.next_offset = held.expected_offset
RETURNING p.topic, p.partition"""

MAKE_POSITIONS: Final[LiteralString] = """
INSERT INTO projection_offsets (topic, partition, next_offset, next_sequence)
SELECT u.topic, u.partition, 0, 0
FROM json_to_recordset(%s) AS u(topic text, partition integer)
ORDER BY u.topic, u.partition
ON CONFLICT DO NOTHING"""

POSITIONS: Final[LiteralString] = """
SELECT topic, partition, next_offset, next_sequence, last_epoch, last_round, round_offset
FROM projection_offsets
JOIN json_to_recordset(%s) AS u(topic text, partition integer) USING (topic, partition)"""

STOP: Final[LiteralString] = """
UPDATE projection_offsets SET stopped = %s WHERE topic = %s AND partition = %s AND next_offset = %s"""

INSERT_JOBS: Final[LiteralString] = f"""
INSERT INTO jobs (
    tenant, job_id, name, queue, priority, status, spec, digest, idempotency_key, created_at, accepted, attempt,
    lost_attempts, machine_id, session, token, presence, cancel_requested, started_at, ended_at, exit_code, signal,
    reason, detail, log_partition, first_offset, last_offset
)
SELECT tenant, job_id, name, queue, priority, status, spec, digest, idempotency_key, to_timestamp(created_at / 1000),
    accepted, attempt, lost_attempts, machine_id, session, token, presence, cancel_requested,
    to_timestamp(COALESCE(started_at, started_fallback) / 1000), to_timestamp(ended_at / 1000), exit_code, signal,
    reason, detail, log_partition, first_offset, last_offset
FROM json_to_recordset(%s) AS u({_JOB_CHANGE},
    name text, queue text, priority smallint, spec json, digest text, idempotency_key text, created_at float8,
    accepted bigint, log_partition integer
)"""

# A leader knows the ids of ended jobs for a window alone. Beyond it a direct producer that uses an idempotency key again
# makes a job anew (the API looks it up): it takes the place of the old one, whose story stays in the log.
_OUTLIVED: Final[LiteralString] = """
json_to_recordset(%s) AS u(tenant text, job_id uuid, created_at float8)
WHERE j.tenant = u.tenant AND j.job_id = u.job_id
    AND j.ended_at <= to_timestamp(u.created_at / 1000) - make_interval(hours => %s)"""
REMOVE_OUTLIVED_ATTEMPTS: Final[LiteralString] = f"""
DELETE FROM attempts a USING (SELECT j.tenant, j.job_id FROM jobs j, {_OUTLIVED}) AS o
WHERE a.tenant = o.tenant AND a.job_id = o.job_id"""
REMOVE_OUTLIVED_JOBS: Final[LiteralString] = f"DELETE FROM jobs j USING {_OUTLIVED}"

UPDATE_JOBS: Final[LiteralString] = f"""
WITH done AS (
    UPDATE jobs j
    SET status = COALESCE(u.status, j.status),
        attempt = COALESCE(u.attempt, j.attempt),
        lost_attempts = j.lost_attempts + u.lost_attempts,
        cancel_requested = j.cancel_requested OR u.cancel_requested,
        machine_id = CASE WHEN u.lease THEN u.machine_id ELSE j.machine_id END,
        session = CASE WHEN u.lease THEN u.session ELSE j.session END,
        token = CASE WHEN u.lease THEN u.token ELSE j.token END,
        presence = CASE WHEN u.lease THEN u.presence ELSE j.presence END,
        started_at = COALESCE(
            CASE WHEN u.started THEN to_timestamp(u.started_at / 1000) ELSE j.started_at END,
            to_timestamp(u.started_fallback / 1000)
        ),
        ended_at = COALESCE(to_timestamp(u.ended_at / 1000), j.ended_at),
        exit_code = COALESCE(u.exit_code, j.exit_code),
        signal = COALESCE(u.signal, j.signal),
        reason = COALESCE(u.reason, j.reason),
        detail = CASE WHEN u.status IN ('completed', 'failed') THEN u.detail ELSE COALESCE(u.detail, j.detail) END,
        last_offset = u.last_offset
    FROM json_to_recordset(%s) AS u({_JOB_CHANGE})
    WHERE j.tenant = u.tenant AND j.job_id = u.job_id AND j.last_offset < u.first_offset
        AND (NOT u.required OR j.ended_at IS NULL)
        AND (u.expected_token IS NULL OR j.token = u.expected_token)
    RETURNING u.required
)
SELECT count(*) FILTER (WHERE required) FROM done"""

MISSED_JOBS: Final[LiteralString] = f"""
SELECT 'job ' || u.job_id || ' of tenant ' || u.tenant
FROM json_to_recordset(%s) AS u({_JOB_CHANGE})
LEFT JOIN jobs j ON j.tenant = u.tenant AND j.job_id = u.job_id AND j.last_offset = u.last_offset
WHERE u.required AND j.job_id IS NULL
LIMIT 3"""

REMOVE_ATTEMPTS: Final[LiteralString] = """
DELETE FROM attempts a
USING json_to_recordset(%s) AS u(tenant text, job_id uuid, attempt integer, token bigint)
WHERE a.tenant = u.tenant AND a.job_id = u.job_id AND a.attempt = u.attempt AND a.token = u.token
    AND a.ended_at IS NULL"""

INSERT_ATTEMPTS: Final[LiteralString] = f"""
INSERT INTO attempts (
    tenant, job_id, attempt, token, machine_id, session, assigned_at, started_at, ended_at, outcome, exit_code, signal,
    detail
)
SELECT tenant, job_id, attempt, token, machine_id, session, to_timestamp(assigned_at / 1000),
    to_timestamp(COALESCE(started_at, started_fallback) / 1000), to_timestamp(ended_at / 1000), outcome, exit_code,
    signal, detail
FROM json_to_recordset(%s) AS u({_ATTEMPT_CHANGE}, machine_id text, session text, assigned_at float8)"""

UPDATE_ATTEMPTS: Final[LiteralString] = f"""
UPDATE attempts a
SET started_at = COALESCE(to_timestamp(u.started_at / 1000), a.started_at, to_timestamp(u.started_fallback / 1000)),
    ended_at = COALESCE(to_timestamp(u.ended_at / 1000), a.ended_at),
    outcome = COALESCE(u.outcome, a.outcome),
    exit_code = COALESCE(u.exit_code, a.exit_code),
    signal = COALESCE(u.signal, a.signal),
    detail = COALESCE(u.detail, a.detail)
FROM json_to_recordset(%s) AS u({_ATTEMPT_CHANGE})
WHERE a.tenant = u.tenant AND a.job_id = u.job_id AND a.attempt = u.attempt AND a.token = u.token
    AND a.ended_at IS NULL"""

EVIDENCE_MAX: Final = 20  # of one attempt; the rest is in the log, and a rogue agent cannot grow a row without bound
ADD_EVIDENCE: Final[LiteralString] = f"""
UPDATE attempts a
SET evidence = jsonb_path_query_array(COALESCE(a.evidence, '[]') || u.evidence, '$[0 to {EVIDENCE_MAX - 1}]')
FROM json_to_recordset(%s) AS u(tenant text, job_id uuid, attempt bigint, evidence jsonb)
WHERE a.tenant = u.tenant AND a.job_id = u.job_id AND a.attempt = u.attempt"""

CLOSE_ATTEMPTS: Final[LiteralString] = """
UPDATE attempts a
SET ended_at = to_timestamp(u.ended_at / 1000), outcome = u.outcome
FROM json_to_recordset(%s) AS u(tenant text, job_id uuid, ended_at float8, outcome text)
WHERE a.tenant = u.tenant AND a.job_id = u.job_id AND a.ended_at IS NULL"""

ADMIT_MACHINES: Final[LiteralString] = f"""
INSERT INTO machines AS m (
    machine_id, session, boot_id, status, cpu_millis, memory_mib, labels, admitted_at, changed_at, last_offset
)
SELECT machine_id, session, boot_id, status, cpu_millis, memory_mib, labels, to_timestamp(admitted_at / 1000),
    to_timestamp(changed_at / 1000), last_offset
FROM json_to_recordset(%s) AS u({_MACHINE_CHANGE},
    boot_id text, cpu_millis integer, memory_mib integer, labels jsonb, admitted_at float8
)
ON CONFLICT (machine_id) DO UPDATE
SET session = excluded.session, boot_id = excluded.boot_id, status = excluded.status,
    cpu_millis = excluded.cpu_millis, memory_mib = excluded.memory_mib, labels = excluded.labels,
    admitted_at = excluded.admitted_at, changed_at = excluded.changed_at, last_offset = excluded.last_offset
WHERE m.last_offset < excluded.last_offset"""

UPDATE_MACHINES: Final[LiteralString] = f"""
UPDATE machines m
SET status = u.status, changed_at = to_timestamp(u.changed_at / 1000), last_offset = u.last_offset
FROM json_to_recordset(%s) AS u({_MACHINE_CHANGE})
WHERE m.machine_id = u.machine_id AND m.session = u.session AND m.last_offset < u.last_offset"""

INSERT_REFUSALS: Final[LiteralString] = """
INSERT INTO command_refusals (tenant, command_id, job_id, code, detail, refused_at)
SELECT tenant, command_id, job_id, code, detail, to_timestamp(refused_at / 1000)
FROM json_to_recordset(%s) AS u(
    tenant text, command_id text, job_id uuid, code text, detail text, refused_at float8
)
ON CONFLICT DO NOTHING"""

# Skips what another projector is deleting; a bounded number at a time.
EXPIRE_REFUSALS: Final[LiteralString] = """
DELETE FROM command_refusals
WHERE (tenant, command_id) IN (
    SELECT tenant, command_id FROM command_refusals
    WHERE refused_at < to_timestamp(%s / 1000.0) ORDER BY refused_at LIMIT 10000 FOR UPDATE SKIP LOCKED
)"""

NOTIFY: Final[LiteralString] = "SELECT pg_notify(%s, %s)"
