-- What the job runs: 'cell', 'notebook' or 'script'.
ALTER TABLE jobs ADD COLUMN job_kind TEXT NOT NULL DEFAULT 'cell';
