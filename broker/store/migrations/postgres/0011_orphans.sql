-- The same as in SQLite's twelfth migration, where it is explained.
ALTER TABLE jobs ADD COLUMN orphaned_ms BIGINT;
