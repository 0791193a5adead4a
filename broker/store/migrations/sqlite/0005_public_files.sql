-- Files that staff made public in their course. The course holds their chunks like a person would, with an empty owner,
-- and the sweep leaves what a file names.
CREATE TABLE public_files (
    course TEXT NOT NULL,
    name TEXT NOT NULL,
    -- NULL: the broker's own token.
    person TEXT,
    at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    -- The names of its chunks, 32 bytes each.
    chunks BLOB NOT NULL,
    PRIMARY KEY (course, name)
) STRICT;
