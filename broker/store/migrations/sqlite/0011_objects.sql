-- Chunks in an object store. There each holder has an object of their own, or shares one that their course has in public.

-- The last part of the object's key; NULL for a file of the chunk folder.
ALTER TABLE chunks ADD COLUMN object TEXT;
-- 0: the holder may upload the object, and the broker has not seen it yet.
ALTER TABLE chunks ADD COLUMN stored INTEGER NOT NULL DEFAULT 1;
