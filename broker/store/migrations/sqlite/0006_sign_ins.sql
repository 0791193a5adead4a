-- Sign-ins: random ids that browsers and notebooks of a JupyterHub use instead of a token. The table contains only
-- hashes of the ids, so a copy of it is not enough to sign in.
CREATE TABLE sign_ins (
    -- BLAKE3 of the id.
    hash BLOB NOT NULL PRIMARY KEY,
    -- 'token', 'hub' or 'notebook': what `content` is.
    kind TEXT NOT NULL,
    -- Empty for the broker's own token.
    person TEXT NOT NULL,
    -- 'token': the hash of the token. 'hub': the Hub's token for this service, encrypted with the id. 'notebook': the
    -- person's courses.
    content BLOB NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX sign_ins_of_person ON sign_ins (person, kind, expires_ms);
