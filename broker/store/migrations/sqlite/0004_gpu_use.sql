-- What a cell had of its GPU, where sessions take turns on it: MessagePack of one GpuUsage.
ALTER TABLE jobs ADD COLUMN gpu BLOB;
