-- Identifiers are the 16 bytes of a UUID; times are milliseconds since 1970.

CREATE TABLE jobs (
    job BLOB NOT NULL PRIMARY KEY,
    -- The order of arrival.
    sequence INTEGER NOT NULL UNIQUE,
    notebook BLOB NOT NULL,
    notebook_name TEXT NOT NULL,
    -- The person, and the course that the notebook is for; empty when it is for none.
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'assigned', 'started', 'finished')),
    outcome TEXT,
    -- Nobody asks for this job's events any more; the row stays for the pages.
    closed INTEGER NOT NULL DEFAULT 0,
    cancel_wanted INTEGER NOT NULL DEFAULT 0,
    worker BLOB,
    worker_name TEXT,
    fencing INTEGER NOT NULL DEFAULT 0,
    -- The number of the worker's last stored event of this assignment.
    acknowledged INTEGER NOT NULL DEFAULT 0,
    -- The assignment during which the proxy sent a whole state; 0 when it never did.
    state_fencing INTEGER NOT NULL DEFAULT 0,
    -- MessagePack; both are gone as soon as the job is finished, because it never runs again.
    cell BLOB,
    manifest BLOB,
    -- Makes runs of the same cell known as such; says nothing of its code.
    cell_key BLOB,
    -- MessagePack.
    priority BLOB NOT NULL,
    -- How long it may run.
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

-- What the order and the budget go by.
CREATE TABLE spent (
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    -- Milliseconds of GPU time as they counted at at_ms; they fade from there.
    faded_ms REAL NOT NULL,
    at_ms INTEGER NOT NULL,
    -- Since the budget's last reset that was followed by a run.
    period_start_ms INTEGER NOT NULL,
    period_ms INTEGER NOT NULL,
    PRIMARY KEY (owner, course)
) STRICT;

-- Sums that stay.
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

-- One row for each file of the chunk folder. The row is written before the file and the file is removed before the
-- row, so that a file without a row cannot be.
CREATE TABLE chunks (
    hash BLOB NOT NULL PRIMARY KEY,
    touched_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX chunks_touched ON chunks (touched_ms);
