-- What is known of each pool of workers, by its name in the settings.
CREATE TABLE pools (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    -- Starts in a row that failed, and why the last one did.
    failures BIGINT NOT NULL,
    words TEXT,
    -- What its workers are (MessagePack), once one has come, and how many jobs each takes at once.
    offer BYTEA,
    slots BIGINT NOT NULL
);

-- One row for each life of a worker of a pool.
CREATE TABLE pool_workers (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    pool TEXT NOT NULL,
    -- Of the worker's own token, which is valid until `ended_ms`.
    token_hash TEXT NOT NULL,
    -- 1: it does not leave when it is idle.
    kept BIGINT NOT NULL,
    -- What the batch system calls it; NULL until that is known.
    job TEXT,
    submitted_ms BIGINT NOT NULL,
    connected_ms BIGINT,
    ended_ms BIGINT
);

CREATE INDEX pool_workers_of_pool ON pool_workers (pool, submitted_ms);
CREATE INDEX pool_workers_of_token ON pool_workers (token_hash);
