//! When each chunk was last named, and the only place where rows and files are deleted for good.
//!
//! **Invariant:** a chunk's row exists before its file and outlives it, and a file is removed while the writer is
//! held. So whoever touches a chunk and *then* looks for its file cannot lose it to a sweep that runs at the time.

use super::{Store, StoreError, statement::sql};
use baton_protocol::ChunkHash;
use std::collections::HashSet;

/// Chunks deleted in one transaction; the queue waits for so long.
const DELETE_BATCH: usize = 64;

impl Store {
    /// The chunks are wanted now: a sweep leaves them for another term.
    pub(crate) async fn touch_chunks(
        &self,
        hashes: &[ChunkHash],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        for batch in hashes.chunks(256) {
            let touch = |hash: &ChunkHash| {
                sql("INSERT INTO chunks (hash, touched_ms) VALUES (?, ?)
                     ON CONFLICT (hash) DO UPDATE SET touched_ms = excluded.touched_ms")
                .bind(hash.0.as_slice())
                .bind(now_ms)
            };
            let writer = self.writer().await?;
            writer.apply(batch.iter().map(touch).collect()).await?;
        }
        Ok(())
    }

    /// Chunks that nobody touched since a time and that are not among those that live.
    pub(crate) async fn stale_chunks(
        &self,
        touched_before_ms: i64,
        live: &HashSet<ChunkHash>,
    ) -> Result<Vec<ChunkHash>, StoreError> {
        let old = sql("SELECT hash FROM chunks WHERE touched_ms < ?").bind(touched_before_ms);
        let mut stale = Vec::new();
        for row in self.fetch(old).await? {
            let hash: Vec<u8> = row.get("hash")?;
            let hash = ChunkHash(hash.try_into().map_err(|_| StoreError::Damaged {
                what: "a chunk's name",
            })?);
            if !live.contains(&hash) {
                stale.push(hash);
            }
        }
        Ok(stale)
    }

    /// Deletes those of the chunks that were not touched in the meantime. `remove_file` runs while the writer is held.
    pub(crate) async fn delete_chunks(
        &self,
        stale: &[ChunkHash],
        touched_before_ms: i64,
        remove_file: &(dyn Fn(ChunkHash) -> bool + Sync),
    ) -> Result<usize, StoreError> {
        let mut deleted = 0;
        for batch in stale.chunks(DELETE_BATCH) {
            let mut writer = self.writer().await?;
            let mut gone = Vec::new();
            for hash in batch {
                let untouched = sql("SELECT 1 FROM chunks WHERE hash = ? AND touched_ms < ?")
                    .bind(hash.0.as_slice())
                    .bind(touched_before_ms);
                if !writer.fetch(untouched).await?.is_empty() && remove_file(*hash) {
                    gone.push(sql("DELETE FROM chunks WHERE hash = ?").bind(hash.0.as_slice()));
                }
            }
            deleted += gone.len();
            writer.apply(gone).await?;
        }
        Ok(deleted)
    }

    /// Rows of jobs that ended before a time and that nobody waits for.
    pub(crate) async fn delete_old_jobs(&self, finished_before_ms: i64) -> Result<(), StoreError> {
        let jobs = sql("DELETE FROM jobs WHERE closed = 1 AND finished_ms < ?");
        let workers = sql("DELETE FROM workers WHERE gone_ms < ?");
        let old = [jobs, workers].map(|old| old.bind(finished_before_ms));
        self.writer().await?.apply(old.into()).await
    }
}
