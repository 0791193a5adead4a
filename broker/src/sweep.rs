//! Deletes what is no longer needed: chunks that no open job names and that were not touched for a term, and old rows.
//!
//! This is the only module that deletes chunks. Somebody holds a chunk while the state of an unfinished job of theirs or
//! a result that is not yet home names it, or when they uploaded or asked for it within the term: its job may be on the
//! way. A chunk that nobody holds goes.
//! `docs/concepts/chunks.md` says why nothing is deleted that is needed.
//! What the rows say is read first and checked again for each chunk while nobody else can write.

use crate::{engine::unix_ms, store::Store, store::StoreError};
use baton_chunks::ChunkDirectory;
use baton_protocol::ChunkHash;
use std::{sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

const EVERY: Duration = Duration::from_secs(60);
/// How long the last of what a job printed is kept after its end.
const OUTPUTS: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) chunks: Duration,
    pub(crate) jobs: Duration,
}

/// Runs until it is dropped.
pub(crate) async fn run(store: Store, chunks: Arc<ChunkDirectory>, terms: Terms) {
    let mut adopted = false;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        round(&store, &chunks, terms, &mut adopted, unix_ms()).await;
    }
}

/// Nothing is swept before all files are adopted, which only the leader can do.
pub(crate) async fn round(
    store: &Store,
    chunks: &Arc<ChunkDirectory>,
    terms: Terms,
    adopted: &mut bool,
    now_ms: i64,
) {
    // Another broker sweeps. If this one becomes the leader again, it adopts all files first.
    if store.check_leadership().await.is_err() {
        *adopted = false;
        return;
    }
    if !*adopted && let Err(error) = adopt(store, chunks, now_ms).await {
        tracing::error!("Failed to count the stored chunks: {error:#}");
        return;
    }
    *adopted = true;
    match sweep(store, chunks, terms, now_ms).await {
        Ok(0) | Err(StoreError::NotLeader) => {}
        Ok(deleted) => tracing::info!(chunks.deleted = deleted, "Deleted {deleted} chunks"),
        Err(error) => tracing::error!("Failed to delete unused chunks: {error}"),
    }
}

/// Gives each file a row, and everything another term. A database that was restored from a copy knows nothing of the
/// files that came later, and without a row they would stay for ever.
pub(crate) async fn adopt(
    store: &Store,
    chunks: &Arc<ChunkDirectory>,
    now_ms: i64,
) -> anyhow::Result<()> {
    let chunks = Arc::clone(chunks);
    let stored = tokio::task::spawn_blocking(move || chunks.list()).await??;
    let files: Vec<(ChunkHash, u64)> = stored
        .iter()
        .map(|chunk| (chunk.hash, chunk.bytes))
        .collect();
    Ok(store.adopt_chunks(&files, now_ms).await?)
}

/// The number of chunks that were deleted.
pub(crate) async fn sweep(
    store: &Store,
    chunks: &Arc<ChunkDirectory>,
    terms: Terms,
    now_ms: i64,
) -> Result<usize, StoreError> {
    store.check_leadership().await?;
    let outputs = terms.jobs.min(OUTPUTS);
    store.delete_old_outputs(before(now_ms, outputs)).await?;
    store.delete_old_jobs(before(now_ms, terms.jobs)).await?;
    let live = store.live_chunks().await?;
    let touched_before = before(now_ms, terms.chunks);
    let stale = store.stale_chunks(touched_before, &live).await?;
    store
        .delete_chunks(&stale, touched_before, &|hash| match chunks.remove(hash) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("Chunk {hash} cannot be deleted: {error}");
                false
            }
        })
        .await
}

fn before(now_ms: i64, term: Duration) -> i64 {
    now_ms.saturating_sub(i64::try_from(term.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
