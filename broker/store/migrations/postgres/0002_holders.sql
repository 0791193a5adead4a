-- The same as in SQLite's third migration, where it is explained.

DROP TABLE chunks;

CREATE TABLE chunks (
    hash BYTEA NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    course TEXT COLLATE "C" NOT NULL,
    bytes BIGINT NOT NULL,
    touched_ms BIGINT NOT NULL,
    PRIMARY KEY (hash, owner, course)
);

CREATE INDEX chunks_touched ON chunks (touched_ms);
CREATE INDEX chunks_held ON chunks (owner, bytes);
CREATE INDEX jobs_of_notebook ON jobs (notebook) WHERE closed = 0;
