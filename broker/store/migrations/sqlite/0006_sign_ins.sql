-- What browsers and notebooks of a JupyterHub were given in place of a token. Only they have the random ids: a copy of
-- this table signs nobody in.
CREATE TABLE sign_ins (
    -- BLAKE3 of the id.
    hash BLOB NOT NULL PRIMARY KEY,
    -- 'token', 'hub' or 'notebook': what `content` is.
    kind TEXT NOT NULL,
    -- Empty: the broker's own token.
    person TEXT NOT NULL,
    -- The hash of the token that was shown; a token of the Hub for this service, encrypted with the id; or a person's
    -- courses.
    content BLOB NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX sign_ins_of_person ON sign_ins (person, kind, expires_ms);
