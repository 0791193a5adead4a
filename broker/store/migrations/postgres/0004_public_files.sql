-- The same as in SQLite's fifth migration, where it is explained.
CREATE TABLE public_files (
    course TEXT NOT NULL,
    name TEXT NOT NULL,
    person TEXT,
    at_ms BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    chunks BYTEA NOT NULL,
    PRIMARY KEY (course, name)
);
