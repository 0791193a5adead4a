-- Files that staff made public in their course. The course holds their chunks as a person would, with an empty owner.
-- The sweep keeps the chunks that a file names.
CREATE TABLE public_files (
    course TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Who made it public; NULL if with the broker's own token.
    person TEXT,
    at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    -- The hashes of its chunks, 32 bytes each.
    chunks BLOB NOT NULL,
    PRIMARY KEY (course, name)
) STRICT;
