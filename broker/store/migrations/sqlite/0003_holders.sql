-- Who holds a chunk: a person who uploaded its bytes, or who received them from a job of their own. The holders of the
-- existing chunks are unknown. At the next start their files get rows without a holder, and are deleted after a term.

DROP TABLE chunks;

-- A file of the chunk folder has one row for each holder, and at least one. The first row is written before the file,
-- and the file is removed before the last row, so there is never a file without a row.
CREATE TABLE chunks (
    hash BLOB NOT NULL,
    -- A person in a course; both empty if there is no holder.
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    touched_ms INTEGER NOT NULL,
    PRIMARY KEY (hash, owner, course)
) STRICT;

CREATE INDEX chunks_touched ON chunks (touched_ms);
-- With this index, the bytes that a person holds are summed without reading the rows.
CREATE INDEX chunks_held ON chunks (owner, bytes);
-- Finds the account of a notebook that a worker names.
CREATE INDEX jobs_of_notebook ON jobs (notebook) WHERE closed = 0;
