-- The same tables as in SQLite, where their columns are explained: integers are 64 bits wide, texts sort by their bytes.
-- Bytes in columns of jobs and events are MessagePack, as there.

-- As in SQLite, which has it built in.
CREATE FUNCTION hex(bytes BYTEA) RETURNS TEXT LANGUAGE SQL IMMUTABLE STRICT AS $$ SELECT upper(encode(bytes, 'hex')) $$;

-- Which broker leads, for those that stand by. The lead itself is an advisory lock.
CREATE TABLE leader (
    number BIGINT NOT NULL PRIMARY KEY CHECK (number = 1),
    address TEXT NOT NULL
);

CREATE TABLE jobs (
    job BYTEA NOT NULL PRIMARY KEY,
    sequence BIGINT NOT NULL UNIQUE,
    notebook BYTEA NOT NULL,
    notebook_name TEXT NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    course TEXT COLLATE "C" NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'assigned', 'started', 'finished')),
    outcome TEXT,
    closed BIGINT NOT NULL DEFAULT 0,
    cancel_wanted BIGINT NOT NULL DEFAULT 0,
    worker BYTEA,
    worker_name TEXT,
    fencing BIGINT NOT NULL DEFAULT 0,
    acknowledged BIGINT NOT NULL DEFAULT 0,
    state_fencing BIGINT NOT NULL DEFAULT 0,
    cell BYTEA,
    manifest BYTEA,
    cell_key BYTEA,
    priority BYTEA NOT NULL,
    timeout_ms BIGINT,
    submitted_ms BIGINT NOT NULL,
    started_ms BIGINT,
    finished_ms BIGINT,
    run_ms BIGINT,
    peak_memory_bytes BIGINT,
    execution_count BIGINT,
    held TEXT,
    front_ms BIGINT,
    stopped TEXT,
    assigned_ms BIGINT,
    sent_bytes BIGINT,
    returned_bytes BIGINT,
    error BYTEA,
    memory BYTEA
);

CREATE INDEX jobs_open ON jobs (sequence) WHERE closed = 0;
CREATE INDEX jobs_finished ON jobs (finished_ms) WHERE state = 'finished';

CREATE TABLE events (
    job BYTEA NOT NULL REFERENCES jobs (job),
    number BIGINT NOT NULL,
    kind TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (job, number)
);

CREATE TABLE spent (
    owner TEXT COLLATE "C" NOT NULL,
    course TEXT COLLATE "C" NOT NULL,
    faded_ms DOUBLE PRECISION NOT NULL,
    at_ms BIGINT NOT NULL,
    period_start_ms BIGINT NOT NULL,
    period_ms BIGINT NOT NULL,
    PRIMARY KEY (owner, course)
);

CREATE TABLE usage (
    day BIGINT NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    course TEXT COLLATE "C" NOT NULL,
    run_ms BIGINT NOT NULL,
    runs BIGINT NOT NULL,
    PRIMARY KEY (day, owner, course)
);

CREATE TABLE workers (
    worker BYTEA NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    devices BYTEA NOT NULL,
    slots BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL,
    gone_ms BIGINT
);

CREATE TABLE chunks (
    hash BYTEA NOT NULL PRIMARY KEY,
    touched_ms BIGINT NOT NULL
);

CREATE INDEX chunks_touched ON chunks (touched_ms);

CREATE TABLE course_changes (
    course TEXT NOT NULL PRIMARY KEY,
    change TEXT NOT NULL
);

CREATE TABLE worker_changes (
    name TEXT NOT NULL PRIMARY KEY,
    paused TEXT
);

CREATE TABLE audit (
    number BIGINT NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at_ms BIGINT NOT NULL,
    person TEXT,
    action TEXT NOT NULL,
    course TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT
);

CREATE TABLE minutes (
    minute BIGINT NOT NULL PRIMARY KEY,
    looks BIGINT NOT NULL,
    running BIGINT NOT NULL,
    waiting BIGINT NOT NULL,
    slots BIGINT NOT NULL
);
