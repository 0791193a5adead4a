-- What the broker knows about each pool of workers, by the pool's name in the settings.
CREATE TABLE pools (
    name TEXT NOT NULL PRIMARY KEY,
    -- Failed starts since the last successful one, and why the last one failed.
    failures INTEGER NOT NULL,
    words TEXT,
    -- What its workers offer (MessagePack), known once one has connected, and how many jobs each runs at once.
    offer BLOB,
    slots INTEGER NOT NULL
) STRICT;

-- One row for each worker that a pool has started.
CREATE TABLE pool_workers (
    name TEXT NOT NULL PRIMARY KEY,
    pool TEXT NOT NULL,
    -- The hash of the worker's own token, which is valid until `ended_ms`.
    token_hash TEXT NOT NULL,
    -- 1: the worker stays when it is idle.
    kept INTEGER NOT NULL,
    -- Its name in the batch system; NULL until that is known.
    job TEXT,
    submitted_ms INTEGER NOT NULL,
    connected_ms INTEGER,
    ended_ms INTEGER
) STRICT;

CREATE INDEX pool_workers_of_pool ON pool_workers (pool, submitted_ms);
CREATE INDEX pool_workers_of_token ON pool_workers (token_hash);
