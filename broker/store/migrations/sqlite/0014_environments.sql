-- The locks from which workers build environments, so that notebooks get the same packages.
CREATE TABLE environments (
    name TEXT NOT NULL PRIMARY KEY,
    -- BLAKE3 of `lock_files`, as workers report it.
    digest TEXT NOT NULL,
    lock_files BLOB NOT NULL,
    -- When a worker last reported it.
    seen_ms INTEGER NOT NULL
) STRICT;
