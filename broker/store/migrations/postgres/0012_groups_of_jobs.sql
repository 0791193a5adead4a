-- The jobs that one command made together, such as an array; NULL for a job of its own.
ALTER TABLE jobs ADD COLUMN job_group BYTEA;
CREATE INDEX jobs_group ON jobs (job_group) WHERE job_group IS NOT NULL;
