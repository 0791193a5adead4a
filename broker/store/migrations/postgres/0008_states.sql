-- The same as in SQLite's ninth migration, where it is explained.
CREATE TABLE states (
    owner TEXT COLLATE "C" NOT NULL,
    course TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    notebook TEXT,
    saved_ms BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    variables BIGINT NOT NULL,
    body BYTEA NOT NULL,
    chunks BYTEA NOT NULL,
    PRIMARY KEY (owner, course, name)
);
