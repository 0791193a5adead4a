-- The same as in SQLite's eighteenth migration, where they are explained.
CREATE INDEX jobs_of_owner ON jobs (owner, sequence);
CREATE INDEX jobs_of_course ON jobs (course, sequence);
CREATE INDEX jobs_finished_of_owner ON jobs (owner, finished_ms) WHERE state = 'finished';
CREATE INDEX jobs_finished_of_course ON jobs (course, finished_ms) WHERE state = 'finished';
CREATE INDEX jobs_open_of_owner ON jobs (owner) WHERE closed = 0;
