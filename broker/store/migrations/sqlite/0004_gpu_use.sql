-- How a cell used its GPU, if sessions share it by time: one GpuUsage as MessagePack.
ALTER TABLE jobs ADD COLUMN gpu BLOB;
