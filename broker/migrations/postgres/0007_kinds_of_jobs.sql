-- 'cell', 'notebook' or 'script': what the job runs.
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'cell';
