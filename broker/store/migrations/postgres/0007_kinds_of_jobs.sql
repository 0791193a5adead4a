-- 'cell', 'notebook' or 'script': what the job runs.
ALTER TABLE jobs ADD COLUMN job_kind TEXT NOT NULL DEFAULT 'cell';
