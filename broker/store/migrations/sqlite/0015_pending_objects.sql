-- Counts and lists the objects that a person may upload but the broker has not seen.
CREATE INDEX chunks_pending ON chunks (owner) WHERE stored = 0;
