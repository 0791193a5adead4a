-- What staff have done, and the history that pages show.

ALTER TABLE jobs ADD COLUMN execution_count INTEGER;
-- Why staff hold the job back; NULL if they do not.
ALTER TABLE jobs ADD COLUMN held TEXT;
-- When staff moved the job to the front of the queue.
ALTER TABLE jobs ADD COLUMN front_ms INTEGER;
-- Who stopped the job and why, as a sentence for its owner.
ALTER TABLE jobs ADD COLUMN stopped TEXT;
ALTER TABLE jobs ADD COLUMN assigned_ms INTEGER;
-- The size of the state sent to the worker, and of the state it returned.
ALTER TABLE jobs ADD COLUMN sent_bytes INTEGER;
ALTER TABLE jobs ADD COLUMN returned_bytes INTEGER;
-- MessagePack: the error as its owner saw it, and the memory use of its session as pairs of time and bytes.
ALTER TABLE jobs ADD COLUMN error BLOB;
ALTER TABLE jobs ADD COLUMN memory BLOB;

-- Changes that override the courses file: one CourseChange each, as JSON.
CREATE TABLE course_changes (
    course TEXT NOT NULL PRIMARY KEY,
    change TEXT NOT NULL
) STRICT;

-- Changes that override the courses file. `paused` is the reason; if it is NULL, the worker takes cells even if the
-- file pauses it.
CREATE TABLE worker_changes (
    name TEXT NOT NULL PRIMARY KEY,
    paused TEXT
) STRICT;

CREATE TABLE audit (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    -- NULL: the broker's own token was used.
    person TEXT,
    action TEXT NOT NULL,
    -- Empty if the action is about a worker.
    course TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT
) STRICT;

-- Samples, one row for each minute since 1970. Pages show the last day and compare it with the same time last week.
CREATE TABLE minutes (
    minute INTEGER NOT NULL PRIMARY KEY,
    -- The number of samples, and the sum of the cells that ran in each.
    looks INTEGER NOT NULL,
    running INTEGER NOT NULL,
    -- The maximum of all samples.
    waiting INTEGER NOT NULL,
    slots INTEGER NOT NULL
) STRICT;
