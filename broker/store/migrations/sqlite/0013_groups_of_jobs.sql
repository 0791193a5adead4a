-- The same for all jobs that one command submitted together, such as an array; NULL for a single job.
ALTER TABLE jobs ADD COLUMN job_group BLOB;
CREATE INDEX jobs_group ON jobs (job_group) WHERE job_group IS NOT NULL;
