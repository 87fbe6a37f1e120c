-- The projection: what the log says, as rows. The projector alone writes it, and it can be rebuilt from the log.

CREATE TABLE projection_offsets (
    topic         text    NOT NULL,   -- without the prefix
    partition     integer NOT NULL,
    next_offset   bigint  NOT NULL,
    next_sequence bigint  NOT NULL,   -- dense in the partition: a gap or a repeat stops the projector
    -- Of the newest record: what a leader's takeover goes on above, and where it reads the newest round from again.
    last_epoch    bigint  NOT NULL DEFAULT 0,
    last_round    bigint  NOT NULL DEFAULT 0,
    round_offset  bigint  NOT NULL DEFAULT 0,   -- of the first record of last_round in this partition
    stopped       text,                         -- why the projector does not go on here: an alarm; null where it does
    PRIMARY KEY (topic, partition)
);

CREATE TABLE jobs (
    tenant           text        NOT NULL,
    job_id           uuid        NOT NULL,
    name             text        NOT NULL,
    queue            text        NOT NULL,
    priority         smallint    NOT NULL,   -- 0 critical, 1 high, 2 normal, 3 low
    status           text        NOT NULL,
    spec             json        NOT NULL,   -- JobSpec as accepted
    digest           text        NOT NULL,   -- of the spec: tells a repeated submission from another one
    idempotency_key  text,
    created_at       timestamptz NOT NULL,   -- `now` of the round that accepted it
    accepted         bigint      NOT NULL,   -- (round << 16) + index: first come, first served
    attempt          integer     NOT NULL DEFAULT 0,   -- the newest attempt's number; 0 before the first
    lost_attempts    integer     NOT NULL DEFAULT 0,   -- started attempts that were lost with their machine
    machine_id       text,                   -- of the lease that is open; of the last attempt when ended
    session          text,
    token            bigint,                 -- fencing token of the lease that is open; its round is token >> 16
    presence         bigint,
    cancel_requested boolean     NOT NULL DEFAULT false,
    started_at       timestamptz,            -- of the newest attempt
    ended_at         timestamptz,
    exit_code        smallint,
    signal           smallint,
    reason           text,                   -- a code: why failed, cancelled
    detail           text,                   -- the same in words
    log_partition    integer     NOT NULL,   -- of `lifecycle`, where first_offset to last_offset hold its story
    first_offset     bigint      NOT NULL,
    last_offset      bigint      NOT NULL,
    PRIMARY KEY (tenant, job_id)
);

CREATE INDEX jobs_by_created ON jobs (tenant, created_at, job_id);
CREATE INDEX jobs_by_queue ON jobs (tenant, queue, created_at, job_id);
CREATE INDEX jobs_by_status ON jobs (tenant, status, created_at, job_id);
-- What a leader without a standby loads: the live jobs, and the ids of those that ended within its memory.
CREATE INDEX jobs_live ON jobs (accepted) WHERE status NOT IN ('completed', 'failed', 'cancelled');
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE attempts (
    tenant      text        NOT NULL,
    job_id      uuid        NOT NULL,
    attempt     integer     NOT NULL,
    token       bigint      NOT NULL,
    machine_id  text        NOT NULL,
    session     text        NOT NULL,
    assigned_at timestamptz NOT NULL,
    started_at  timestamptz,
    ended_at    timestamptz,
    outcome     text,                   -- succeeded, failed, timed_out, lost, cancelled; null while open
    exit_code   smallint,
    signal      smallint,
    detail      text,
    evidence    jsonb,                  -- stale reports, kept as they came: a list
    PRIMARY KEY (tenant, job_id, attempt)
);

CREATE TABLE machines (
    machine_id  text        NOT NULL PRIMARY KEY,
    session     text        NOT NULL,
    boot_id     text        NOT NULL,
    status      text        NOT NULL,   -- up, draining, left, lost
    cpu_millis  integer     NOT NULL,
    memory_mib  integer     NOT NULL,
    labels      jsonb       NOT NULL,
    admitted_at timestamptz NOT NULL,
    changed_at  timestamptz NOT NULL,
    last_offset bigint      NOT NULL    -- in its partition of `fleet`
);

-- Commands that made nothing, by the id of the command: what the API answers from.
CREATE TABLE command_refusals (
    tenant     text        NOT NULL,
    command_id text        NOT NULL,
    job_id     uuid        NOT NULL,
    code       text        NOT NULL,
    detail     text        NOT NULL,
    refused_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, command_id)
);
CREATE INDEX command_refusals_by_time ON command_refusals (refused_at);
