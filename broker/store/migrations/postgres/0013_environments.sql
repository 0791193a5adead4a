-- The same as in SQLite's fourteenth migration, where it is explained.
CREATE TABLE environments (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    digest TEXT NOT NULL,
    lock_files BYTEA NOT NULL,
    seen_ms BIGINT NOT NULL
);
