-- What staff do, and what pages show of the past.

ALTER TABLE jobs ADD COLUMN execution_count INTEGER;
-- Why staff hold it back.
ALTER TABLE jobs ADD COLUMN held TEXT;
-- When staff moved it to the front.
ALTER TABLE jobs ADD COLUMN front_ms INTEGER;
-- Who stopped it and why, in words for its owner.
ALTER TABLE jobs ADD COLUMN stopped TEXT;
ALTER TABLE jobs ADD COLUMN assigned_ms INTEGER;
-- State on its way there, and back.
ALTER TABLE jobs ADD COLUMN sent_bytes INTEGER;
ALTER TABLE jobs ADD COLUMN returned_bytes INTEGER;
-- MessagePack: the error as its owner saw it, and the memory of its session as pairs of time and bytes.
ALTER TABLE jobs ADD COLUMN error BLOB;
ALTER TABLE jobs ADD COLUMN memory BLOB;

-- What differs from the courses file: JSON of one CourseChange.
CREATE TABLE course_changes (
    course TEXT NOT NULL PRIMARY KEY,
    change TEXT NOT NULL
) STRICT;

-- What differs from the courses file. Without a reason the worker takes cells, whatever the file says.
CREATE TABLE worker_changes (
    name TEXT NOT NULL PRIMARY KEY,
    paused TEXT
) STRICT;

CREATE TABLE audit (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    -- Nobody: the broker's own token.
    person TEXT,
    action TEXT NOT NULL,
    -- Empty for workers.
    course TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT
) STRICT;

-- Minutes since 1970, for the pages' last day and for the same time last week.
CREATE TABLE minutes (
    minute INTEGER NOT NULL PRIMARY KEY,
    -- How many looks, and the sum of the cells that ran at each.
    looks INTEGER NOT NULL,
    running INTEGER NOT NULL,
    -- The most at one look.
    waiting INTEGER NOT NULL,
    slots INTEGER NOT NULL
) STRICT;
