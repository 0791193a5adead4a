-- Who holds a chunk: whoever brought its bytes, or was given them by a job of their own. Who held the old ones is not
-- known; their files get rows of nobody at the next start, and go after a term.

DROP TABLE chunks;

-- A file of the chunk folder has one row for each holder, and at least one. The first row is written before the file,
-- and the file is removed before the last row, so that a file without a row cannot be.
CREATE TABLE chunks (
    hash BLOB NOT NULL,
    -- A person in a course; both empty for nobody.
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    touched_ms INTEGER NOT NULL,
    PRIMARY KEY (hash, owner, course)
) STRICT;

CREATE INDEX chunks_touched ON chunks (touched_ms);
-- What each person holds, without looking at the rows.
CREATE INDEX chunks_held ON chunks (owner, bytes);
-- Whose notebook a worker speaks of.
CREATE INDEX jobs_of_notebook ON jobs (notebook) WHERE closed = 0;
