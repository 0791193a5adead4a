-- A worker that reconnects asks its open questions again.
ALTER TABLE jobs DROP COLUMN state_fencing;
