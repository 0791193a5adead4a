-- When the job's notebook kernel had ended; what it leaves waits for another kernel of its person.
ALTER TABLE jobs ADD COLUMN orphaned_ms INTEGER;
