-- Identifiers are the 16 bytes of a UUID; times are milliseconds since 1970.

CREATE TABLE jobs (
    job BLOB NOT NULL PRIMARY KEY,
    -- Jobs are numbered in order of arrival.
    sequence INTEGER NOT NULL UNIQUE,
    notebook BLOB NOT NULL,
    notebook_name TEXT NOT NULL,
    -- The person, and the course of the notebook; empty if it has none.
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'assigned', 'started', 'finished')),
    outcome TEXT,
    -- 1: no peer asks for this job's events any more. The row stays for the pages.
    closed INTEGER NOT NULL DEFAULT 0,
    cancel_wanted INTEGER NOT NULL DEFAULT 0,
    worker BLOB,
    worker_name TEXT,
    fencing INTEGER NOT NULL DEFAULT 0,
    -- The number of the worker's last event of this assignment that is stored.
    acknowledged INTEGER NOT NULL DEFAULT 0,
    -- The assignment during which the proxy sent a whole state; 0 if it never did.
    state_fencing INTEGER NOT NULL DEFAULT 0,
    -- MessagePack. Both are set to NULL when the job is finished, because it never runs again.
    cell BLOB,
    manifest BLOB,
    -- The same for all runs of a cell. Reveals nothing about its code.
    cell_key BLOB,
    -- MessagePack.
    priority BLOB NOT NULL,
    -- The time limit.
    timeout_ms INTEGER,
    submitted_ms INTEGER NOT NULL,
    started_ms INTEGER,
    finished_ms INTEGER,
    run_ms INTEGER,
    peak_memory_bytes INTEGER
) STRICT;

CREATE INDEX jobs_open ON jobs (sequence) WHERE closed = 0;
CREATE INDEX jobs_finished ON jobs (finished_ms) WHERE state = 'finished';

CREATE TABLE events (
    job BLOB NOT NULL REFERENCES jobs (job),
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    -- MessagePack of one JobEvent.
    body BLOB NOT NULL,
    PRIMARY KEY (job, number)
) STRICT;

-- GPU time used, which decides the queue order and counts against the budget.
CREATE TABLE spent (
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    -- Milliseconds of GPU time, as of `at_ms`. The value decays from then on.
    faded_ms REAL NOT NULL,
    at_ms INTEGER NOT NULL,
    -- The last budget period in which something was charged: its start, and the milliseconds charged in it.
    period_start_ms INTEGER NOT NULL,
    period_ms INTEGER NOT NULL,
    PRIMARY KEY (owner, course)
) STRICT;

-- Daily sums, which are never deleted.
CREATE TABLE usage (
    -- Days since 1970, in UTC.
    day INTEGER NOT NULL,
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    run_ms INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    PRIMARY KEY (day, owner, course)
) STRICT;

CREATE TABLE workers (
    worker BLOB NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    devices BLOB NOT NULL,
    slots INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL,
    gone_ms INTEGER
) STRICT;

-- One row for each file of the chunk folder. The row is written before the file, and the file is removed before the
-- row, so there is never a file without a row.
CREATE TABLE chunks (
    hash BLOB NOT NULL PRIMARY KEY,
    touched_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX chunks_touched ON chunks (touched_ms);
