-- The same as in SQLite's fourth migration, where it is explained.
ALTER TABLE jobs ADD COLUMN gpu BYTEA;
