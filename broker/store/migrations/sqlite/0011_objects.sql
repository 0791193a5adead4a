-- Chunks in an object store. There, each holder has an object of their own or shares the public one of their course.

-- The last part of the object's key; NULL for a file of the chunk folder.
ALTER TABLE chunks ADD COLUMN object TEXT;
-- 0: the holder may upload the object, but the broker has not seen it yet.
ALTER TABLE chunks ADD COLUMN stored INTEGER NOT NULL DEFAULT 1;
