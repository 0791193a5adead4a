-- Saved states of notebooks: variables that a person keeps under a name. The sweep keeps the chunks that a state names.
CREATE TABLE states (
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    name TEXT NOT NULL,
    notebook TEXT,
    saved_ms INTEGER NOT NULL,
    -- The size of its chunks, each counted once.
    bytes INTEGER NOT NULL,
    variables INTEGER NOT NULL,
    -- The encoded `SavedState`.
    body BLOB NOT NULL,
    -- The hashes of its chunks, 32 bytes each.
    chunks BLOB NOT NULL,
    PRIMARY KEY (owner, course, name)
) STRICT;
