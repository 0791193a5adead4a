//! Deletes what is no longer needed: chunks that no open job names and that were not touched for a
//! term, and old rows.
//!
//! This is the only module that deletes chunks. An account holds a chunk in four cases: the state
//! of an open job of theirs names it; a result that its notebook does not have yet names it; a saved
//! state of theirs names it; or the account uploaded or requested it within the term, because a job
//! may be about to name it. A chunk without a holder is deleted. `docs/concepts/chunks.md` explains
//! why nothing is deleted that is needed. The sweep first reads all rows. It then checks them again
//! for each chunk while nothing else can write.

mod clock;

use crate::{chunk_store::ChunkStore, clock::unix_ms, engine::Event, objects::Objects};
use baton_broker_queue::Account;
use baton_broker_store::{ObjectRow, Store, StoreError};
use baton_protocol::{ChunkHash, JobId};
use clock::Clock;
use futures_util::{StreamExt, TryStreamExt};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

const EVERY: Duration = Duration::from_secs(60);
/// How often the whole object store is listed.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// How many objects are checked together, and the pause before the next ones, which limits the load
/// on the store.
const PAGE: usize = 1000;
const PAGE_PAUSE: Duration = Duration::from_millis(200);
/// Longer than any upload takes, and than clocks differ.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// How long the last outputs of a job are kept after its end.
const OUTPUTS: Duration = Duration::from_secs(24 * 3600);
/// How long the audit log says what people did.
const AUDIT_LOG: Duration = Duration::from_secs(366 * 24 * 3600);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    pub(crate) chunks: Duration,
    pub(crate) jobs: Duration,
}

/// A chunk, and its holders that do not need it.
type Stale = (ChunkHash, Vec<Account>);

/// What a sweep has deleted.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// The number of chunks.
    pub(crate) chunks: usize,
    pub(crate) jobs: Vec<JobId>,
}

/// Runs until it is dropped. The engine learns which jobs were deleted.
pub(crate) async fn run(
    store: Store,
    chunks: ChunkStore,
    retention: Retention,
    inbox: mpsc::Sender<Event>,
) {
    tokio::join!(
        sweep_regularly(&store, &chunks, retention, inbox),
        look_regularly(&store, &chunks)
    );
}

async fn sweep_regularly(
    store: &Store,
    chunks: &ChunkStore,
    retention: Retention,
    inbox: mpsc::Sender<Event>,
) {
    let started_ms = unix_ms();
    let (mut adopted_ms, mut clock) = (None, None);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now_ms = unix_ms();
        let clock = match &mut clock {
            Some(clock) => clock,
            none => match store.jobs().newest_ms(started_ms).await {
                Ok(newest_ms) => none.insert(Clock::new(newest_ms.unwrap_or(now_ms))),
                // The first leader has not created the tables yet.
                Err(_) => continue,
            },
        };
        if !clock.is_believed(now_ms, Instant::now()) {
            continue;
        }
        let swept = round(store, chunks, retention, &mut adopted_ms, now_ms).await;
        if !swept.jobs.is_empty() {
            // The engine ends only with the broker.
            let _ = inbox.send(Event::JobsDeleted(swept.jobs)).await;
        }
    }
}

async fn look_regularly(store: &Store, chunks: &ChunkStore) {
    let ChunkStore::Objects(objects) = chunks else {
        return;
    };
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match look_through(store, objects, unix_ms()).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!("Deleted {deleted} unused objects"),
            Err(error) => tracing::error!("Failed to look through the object store: {error:#}"),
        }
    }
}

/// Deletes objects without a row. They exist if the broker was killed after it had deleted the row,
/// or if its database was restored from an older copy. Returns how many it deleted.
pub(crate) async fn look_through(
    store: &Store,
    objects: &Objects,
    now_ms: i64,
) -> anyhow::Result<usize> {
    let mut deleted = 0;
    let mut pages = objects.list().try_chunks(PAGE);
    while let Some(page) = pages.next().await {
        // Checked before each deletion: another broker may have rows that this one does not see.
        if store.check_leadership().await.is_err() {
            return Ok(deleted);
        }
        let page = page.map_err(|error| error.1)?;
        let rows = page.iter().filter_map(|listed| listed.row.as_ref());
        let hashes: Vec<ChunkHash> = rows.map(|row| row.hash).collect();
        let known = store.objects().of_chunks(&hashes).await?;
        let is_lost = |listed: &crate::objects::Listed| {
            let is_known = |row| known.contains(row);
            let is_old = listed.modified_ms < before(now_ms, FORGOTTEN_AFTER);
            is_old && listed.row.as_ref().is_some_and(|row| !is_known(row))
        };
        let lost = page.into_iter().filter(is_lost);
        let lost: Vec<_> = lost.map(|listed| listed.path).collect();
        deleted += lost.len() - objects.delete_paths(lost.clone()).await;
        sleep(PAGE_PAUSE).await;
    }
    Ok(deleted)
}

/// Deletes uploads whose length differs from that of their grant, if the store does not enforce it.
/// The row stays, so the upload counts as pending until its grant has long expired.
pub(crate) async fn check_uploads(store: &Store, objects: &Objects) -> anyhow::Result<usize> {
    if objects.fixes_length() {
        return Ok(0);
    }
    let pending = store.objects().pending().await?;
    let owners: HashMap<ObjectRow, String> = pending.iter().cloned().collect();
    let rows = pending.into_iter().map(|(row, _)| row).collect();
    let mut wrong = Vec::new();
    for (row, bytes) in objects.sizes(rows).await? {
        if let (Some(bytes), Some(owner)) = (bytes, owners.get(&row))
            && bytes != row.bytes
        {
            tracing::warn!(
                "{owner} uploaded {bytes} bytes instead of the announced {}; they are deleted",
                row.bytes
            );
            wrong.push(row);
        }
    }
    let count = wrong.len();
    Ok(count - objects.delete(wrong).await)
}

/// One round. Nothing is swept before all files are adopted, which only the leader can do. `adopted_ms`: when it did.
pub(crate) async fn round(
    store: &Store,
    chunks: &ChunkStore,
    retention: Retention,
    adopted_ms: &mut Option<i64>,
    now_ms: i64,
) -> Swept {
    // Another broker sweeps. If this one becomes the leader again, it must first adopt all files.
    if store.check_leadership().await.is_err() {
        *adopted_ms = None;
        return Swept::default();
    }
    let since_ms = match *adopted_ms {
        Some(since_ms) => since_ms,
        None => match adopt(store, chunks, now_ms).await {
            Ok(()) => *adopted_ms.insert(now_ms),
            Err(error) => {
                tracing::error!("Failed to count the stored chunks: {error:#}");
                return Swept::default();
            }
        },
    };
    if let ChunkStore::Objects(objects) = chunks
        && let Err(error) = check_uploads(store, objects).await
    {
        tracing::error!("Failed to look at the uploads that are under way: {error:#}");
    }
    let swept = sweep(store, chunks, retention, since_ms, now_ms).await;
    match &swept {
        Ok(Swept { chunks: 0, .. }) | Err(StoreError::NotLeader) => {}
        Ok(Swept { chunks, .. }) => {
            tracing::info!(chunks.deleted = chunks, "Deleted {chunks} chunks");
        }
        Err(error) => tracing::error!("Failed to delete unused chunks: {error}"),
    }
    swept.unwrap_or_default()
}

/// Gives each file a row. A database that was restored from a copy does not know newer files, which would otherwise
/// never be deleted.
pub(crate) async fn adopt(store: &Store, chunks: &ChunkStore, now_ms: i64) -> anyhow::Result<()> {
    let ChunkStore::Folder(chunks) = chunks else {
        // Objects without a row are deleted when the bucket is listed.
        return Ok(());
    };
    let chunks = Arc::clone(chunks);
    let stored = tokio::task::spawn_blocking(move || chunks.list()).await??;
    let files: Vec<(ChunkHash, u64)> = stored
        .iter()
        .map(|chunk| (chunk.hash, chunk.bytes))
        .collect();
    let nobody = Account::default();
    Ok(store.chunks().hold(&nobody, &files, now_ms).await?)
}

/// Chunks that were held at `adopted_ms` count as touched then: no row of them is changed.
pub(crate) async fn sweep(
    store: &Store,
    chunks: &ChunkStore,
    retention: Retention,
    adopted_ms: i64,
    now_ms: i64,
) -> Result<Swept, StoreError> {
    store.check_leadership().await?;
    let audit_log = store.audit_log();
    audit_log.delete_old(before(now_ms, AUDIT_LOG)).await?;
    let outputs = retention.jobs.min(OUTPUTS);
    let jobs = store.jobs();
    jobs.delete_old_outputs(before(now_ms, outputs)).await?;
    let jobs = jobs.delete_old(before(now_ms, retention.jobs)).await?;
    let touched_before = before(now_ms, retention.chunks);
    let stale = match adopted_ms < touched_before {
        true => stale(store, touched_before).await?,
        false => Vec::new(),
    };
    let chunks = delete_chunks(store, chunks, &stale, touched_before).await?;
    Ok(Swept { chunks, jobs })
}

async fn stale(store: &Store, touched_before: i64) -> Result<Vec<Stale>, StoreError> {
    let live = store.live_chunks().await?;
    store.chunks().stale(touched_before, &live).await
}

/// Returns the number of deleted chunks.
async fn delete_chunks(
    store: &Store,
    chunks: &ChunkStore,
    stale: &[Stale],
    touched_before: i64,
) -> Result<usize, StoreError> {
    let chunks = match chunks {
        ChunkStore::Folder(chunks) => chunks,
        ChunkStore::Objects(objects) => {
            let unheld = store.objects().forget(stale, touched_before).await?;
            let count = unheld.len();
            let failed = objects.delete(unheld).await;
            objects.space.count(store).await?;
            return Ok(count - failed);
        }
    };
    store
        .chunks()
        .delete(stale, touched_before, &|hash| match chunks.remove(hash) {
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
mod object_tests;
#[cfg(test)]
mod tests;
