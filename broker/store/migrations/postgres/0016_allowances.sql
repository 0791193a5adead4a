-- The same as in SQLite's seventeenth migration, where it is explained.
CREATE TABLE allowances (
    owner TEXT COLLATE "C" NOT NULL,
    course TEXT COLLATE "C" NOT NULL,
    extra_ms BIGINT NOT NULL,
    until_ms BIGINT NOT NULL,
    person TEXT,
    PRIMARY KEY (owner, course)
);
