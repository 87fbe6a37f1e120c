"""Every statement of the API, by name. Tables are found by the search path; `{private}` is the API's own schema."""

from typing import Final, LiteralString

# ---- jobs

_SUMMARY: Final[LiteralString] = """
    j.job_id::text AS job_id, j.name, j.status, j.queue, j.priority, j.spec->'resources' AS resources,
    j.spec->'labels' AS labels, j.machine_id, j.attempt, j.created_at, j.started_at, j.ended_at, j.exit_code, j.signal,
    j.reason, j.detail, j.cancel_requested
"""
_STATE: Final[LiteralString] = """
    j.job_id::text AS job_id, j.name, j.status, j.queue, j.priority, j.created_at, j.cancel_requested, j.digest,
    j.log_partition, j.last_offset
"""

ATTEMPTS_SHOWN_MAX: Final = 1_000  # the newest ones

JOB: Final[LiteralString] = f"""
SELECT {_SUMMARY}, j.spec, j.log_partition, j.last_offset, coalesce((
    SELECT json_agg(a ORDER BY a.attempt) FROM (
        SELECT attempt, outcome, machine_id, exit_code, signal, assigned_at, started_at, ended_at, detail, evidence
        FROM attempts WHERE tenant = j.tenant AND job_id = j.job_id ORDER BY attempt DESC LIMIT {ATTEMPTS_SHOWN_MAX}
    ) AS a), '[]') AS attempts
FROM jobs AS j WHERE j.tenant = %(tenant)s AND j.job_id = %(job_id)s
"""  # noqa: S608 (our own constants)

JOB_STATE: Final[LiteralString] = (
    f"SELECT {_STATE} FROM jobs AS j WHERE j.tenant = %(tenant)s AND j.job_id = %(job_id)s"  # noqa: S608
)

# All who wait for their command in one statement; a snapshot of both tables.
ANSWERS: Final[LiteralString] = f"""
SELECT asked.command_id, {_STATE}, r.code AS refusal_code, r.detail AS refusal_detail
FROM unnest(%(tenants)s::text[], %(job_ids)s::uuid[], %(command_ids)s::text[]) AS asked (tenant, job_id, command_id)
LEFT JOIN jobs AS j ON j.tenant = asked.tenant AND j.job_id = asked.job_id
LEFT JOIN command_refusals AS r ON r.tenant = asked.tenant AND r.command_id = asked.command_id
"""  # noqa: S608

POSITIONS: Final[LiteralString] = """
SELECT partition, next_offset FROM projection_offsets WHERE topic = 'lifecycle' AND partition = ANY(%(partitions)s)
"""

_JOBS_WHERE: Final[dict[tuple[bool, bool, bool], LiteralString]] = {
    (queue, status, after): "WHERE j.tenant = %(tenant)s"
    + (" AND j.queue = %(queue)s" if queue else "")
    + (" AND j.status = %(status)s" if status else "")
    + (" AND (j.created_at, j.job_id) < (%(created_at)s, %(job_id)s::uuid)" if after else "")
    for queue in (False, True)
    for status in (False, True)
    for after in (False, True)
}


def jobs(*, queue: bool, status: bool, after: bool) -> LiteralString:
    """A page of jobs, newest first; each of the filters has an index that gives the order."""
    return (
        f"SELECT {_SUMMARY} FROM jobs AS j {_JOBS_WHERE[queue, status, after]} "  # noqa: S608
        "ORDER BY j.created_at DESC, j.job_id DESC LIMIT %(limit)s"
    )


# The attempt whose output is asked for: the newest where none is named. No row: no such job.
LOG_OF: Final[LiteralString] = """
SELECT j.status, a.attempt, a.token, a.ended_at IS NOT NULL AS ended
FROM jobs AS j LEFT JOIN LATERAL (
    SELECT attempt, token, ended_at FROM attempts
    WHERE tenant = j.tenant AND job_id = j.job_id AND (%(attempt)s::integer IS NULL OR attempt = %(attempt)s)
    ORDER BY attempt DESC LIMIT 1
) AS a ON true
WHERE j.tenant = %(tenant)s AND j.job_id = %(job_id)s
"""

# ---- machines

_MACHINES: Final[LiteralString] = """
SELECT m.machine_id, m.status, m.cpu_millis, m.memory_mib, m.labels, m.admitted_at, m.changed_at,
    coalesce(held.jobs, 0) AS running_jobs
FROM ({chosen}) AS m LEFT JOIN (
    SELECT machine_id, count(*) AS jobs FROM jobs WHERE status IN ('assigned', 'running') GROUP BY machine_id
) AS held USING (machine_id)
ORDER BY m.machine_id
"""
MACHINES: Final[LiteralString] = _MACHINES.replace(
    "{chosen}", "SELECT * FROM machines WHERE machine_id > %(after)s ORDER BY machine_id LIMIT %(limit)s"
)
MACHINE: Final[LiteralString] = _MACHINES.replace(
    "{chosen}", "SELECT * FROM machines WHERE machine_id = %(machine_id)s"
).replace("status IN", "machine_id = %(machine_id)s AND status IN")

# ---- tenants and keys, in the API's own schema

KEY: Final[LiteralString] = """
SELECT tenant, secret FROM {private}.api_keys WHERE key_id = %(key_id)s AND revoked_at IS NULL
"""
TENANTS: Final[LiteralString] = """
SELECT tenant, created_at FROM {private}.tenants WHERE tenant > %(after)s ORDER BY tenant LIMIT %(limit)s
"""
TENANT: Final[LiteralString] = "SELECT tenant FROM {private}.tenants WHERE tenant = %(tenant)s"
INSERT_TENANT: Final[LiteralString] = """
INSERT INTO {private}.tenants (tenant) VALUES (%(tenant)s) ON CONFLICT DO NOTHING RETURNING tenant, created_at
"""
KEYS: Final[LiteralString] = """
SELECT key_id, name, created_at, revoked_at FROM {private}.api_keys
WHERE tenant = %(tenant)s AND key_id > %(after)s ORDER BY key_id LIMIT %(limit)s
"""
INSERT_KEY: Final[LiteralString] = """
INSERT INTO {private}.api_keys (key_id, tenant, secret, name)
VALUES (%(key_id)s, %(tenant)s, %(secret)s, %(name)s) RETURNING key_id, name, created_at
"""
REVOKE_KEY: Final[LiteralString] = """
UPDATE {private}.api_keys SET revoked_at = coalesce(revoked_at, now())
WHERE tenant = %(tenant)s AND key_id = %(key_id)s RETURNING key_id
"""
ADMIN_KEY_EXISTS: Final[LiteralString] = """
SELECT 1 FROM {private}.api_keys WHERE tenant IS NULL AND revoked_at IS NULL LIMIT 1
"""
LOCK_KEYS: Final[LiteralString] = "LOCK TABLE {private}.api_keys IN SHARE ROW EXCLUSIVE MODE"

# ---- readiness

NEWEST_MIGRATION: Final[LiteralString] = "SELECT coalesce(max(number), 0) AS number FROM migrations"
NEWEST_PRIVATE_MIGRATION: Final[LiteralString] = "SELECT coalesce(max(number), 0) AS number FROM {private}.migrations"
