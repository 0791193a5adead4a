-- When the job's notebook kernel ended. The job's result is kept for another kernel of the same person.
ALTER TABLE jobs ADD COLUMN orphaned_ms INTEGER;
