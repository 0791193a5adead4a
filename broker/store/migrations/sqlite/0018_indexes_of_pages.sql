-- The newest jobs of a person and of a course, for pages. Most people have few of the jobs.
CREATE INDEX jobs_of_owner ON jobs (owner, sequence);
CREATE INDEX jobs_of_course ON jobs (course, sequence);
CREATE INDEX jobs_finished_of_owner ON jobs (owner, finished_ms) WHERE state = 'finished';
CREATE INDEX jobs_finished_of_course ON jobs (course, finished_ms) WHERE state = 'finished';
-- For quotas, which would otherwise use the first one and read all jobs of a person.
CREATE INDEX jobs_open_of_owner ON jobs (owner) WHERE closed = 0;
