-- GPU time that staff grant people for a while, beyond the budget of their course.
CREATE TABLE allowances (
    -- Empty for everyone in the course.
    owner TEXT NOT NULL,
    course TEXT NOT NULL,
    extra_ms INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    -- Who granted it; NULL: the broker's own token was used.
    person TEXT,
    PRIMARY KEY (owner, course)
) STRICT;
