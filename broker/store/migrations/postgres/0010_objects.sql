-- The same as in SQLite's eleventh migration, where it is explained.
ALTER TABLE chunks ADD COLUMN object TEXT COLLATE "C";
ALTER TABLE chunks ADD COLUMN stored BIGINT NOT NULL DEFAULT 1;
