-- Objects that somebody may upload and the broker has not seen, which are counted and looked at.
CREATE INDEX chunks_pending ON chunks (owner) WHERE stored = 0;
