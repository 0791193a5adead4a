-- The same as in SQLite's sixth migration, where it is explained.
CREATE TABLE sign_ins (
    hash BYTEA NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    person TEXT COLLATE "C" NOT NULL,
    content BYTEA NOT NULL,
    expires_ms BIGINT NOT NULL
);

CREATE INDEX sign_ins_of_person ON sign_ins (person, kind, expires_ms);
