//! Moving one state between a kernel and wherever the other end gets it: out of a kernel's memory, and into a file
//! that the shim of the other kernel maps.
//!
//! ```text
//! Changes ── pack ────> Bundle ─── unpack ──> Received      (memory transport)
//! Changes ── upload ──> Manifest ─ download ─> Received     (through the broker, or an object store)
//! ```
//!
//! **Invariant:** once one of these functions has returned, even with an error, the kernel's memory is no longer
//! read. If its future is dropped instead, reading stops within one batch of chunks.

use crate::{ChunkClient, LinkError};
use baton_chunks::{
    Assembler, Bundle, ChunkDirectory, Collector, Ledger, Severity, StateError, memory::Room,
};
use baton_protocol::{
    Bound, ChunkHash, Manifest, StateVersion,
    shim::{Delta, Snapshot},
};
use bytes::Bytes;
use std::{os::fd::OwnedFd, sync::Arc};
use tokio::task::{JoinError, spawn_blocking};
use tokio_util::sync::CancellationToken;

/// The number of chunks, of at most 1 MiB each, that are fetched before they are put in their places.
const GROUP: usize = 16;

/// What a kernel has and the other end lacks, still in the kernel's memory.
#[derive(Clone)]
pub struct Changes {
    /// The process whose memory is read.
    pub kernel: i32,
    /// What the other end has.
    pub base: StateVersion,
    pub snapshot: Snapshot,
    pub ledger: Ledger,
}

/// A state that is ready for a shim.
pub struct Received {
    pub file: OwnedFd,
    pub delta: Delta,
    /// What both ends hold once the shim has applied it.
    pub ledger: Ledger,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("The transfer of the state was aborted")]
    Join(#[from] JoinError),
    /// On the memory transport.
    #[error("The worker's result is missing")]
    NoResult,
    /// The manifest is larger than [`Bound::STATE`].
    #[error("There are so many small objects that their list alone is too large")]
    TooManyObjects,
}

impl TransferError {
    /// What another attempt would lead to.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::Link(error) => error.severity(),
            Self::Join(_) | Self::NoResult => Severity::AskAgain,
            Self::State(error) => error.severity(),
            Self::TooManyObjects => Severity::Lasting,
        }
    }
}

/// Reads the changes into a sealed file in memory, and returns them, too: for the ledger, or for another attempt.
/// `room` is for the file.
///
/// # Errors
/// The inner error is the reading's own; [`StateError::Cancelled`] if `cancel` was triggered.
pub async fn pack(
    changes: Changes,
    room: impl FnOnce() -> Room + Send + 'static,
    cancel: CancellationToken,
) -> Result<(Result<Bundle, StateError>, Changes), TransferError> {
    let quick = baton_chunks::is_quick(&changes.snapshot);
    let pack = move || {
        let Changes {
            kernel,
            snapshot,
            ledger,
            ..
        } = &changes;
        let cancelled = || cancel.is_cancelled();
        let room = match quick {
            // It is so small that looking for room would take longer.
            true => Room::UNLIMITED,
            false => room(),
        };
        let bundle = baton_chunks::pack(*kernel, snapshot, ledger, room, &cancelled);
        (bundle, changes)
    };
    match quick {
        true => Ok(pack()),
        false => Ok(spawn_blocking(pack).await?),
    }
}

/// Verifies a bundle against what both ends hold.
///
/// # Errors
/// If it contradicts itself or what was sent before.
pub fn unpack(bundle: Bundle, ledger: Ledger) -> Result<Received, StateError> {
    let ledger = bundle.enter(ledger)?;
    let (file, delta) = bundle.into_parts();
    Ok(Received {
        file,
        delta,
        ledger,
    })
}

/// Reads the changes and uploads the chunks that the broker lacks. Returns what describes the state, and what both
/// ends hold once it has been applied.
///
/// # Errors
/// If the memory cannot be read or the chunks cannot be stored; [`TransferError::TooManyObjects`] if no message could
/// name them all; [`StateError::Cancelled`] if `cancel` was triggered.
pub async fn upload(
    chunk_client: &ChunkClient,
    changes: Changes,
    cancel: &CancellationToken,
) -> Result<(Manifest, Ledger), TransferError> {
    let Changes {
        kernel,
        base,
        snapshot,
        ledger,
    } = changes;
    let mut collector = Collector::new(kernel, base, snapshot, ledger);
    loop {
        let batch;
        (collector, batch) = blocking(move || {
            let batch = collector.next_batch()?;
            Ok((collector, batch))
        })
        .await?;
        let Some(batch) = batch else {
            let (manifest, ledger) = collector.finish();
            return match Bound::STATE.allows(&manifest) {
                true => Ok((manifest, ledger)),
                false => Err(TransferError::TooManyObjects),
            };
        };
        let stored = cancel.run_until_cancelled(chunk_client.put_missing(batch));
        stored.await.ok_or(StateError::Cancelled)??;
    }
}

/// Fetches the chunks of a manifest and assembles them. Those in the cache are not fetched, and the others are added
/// to it.
///
/// # Errors
/// If a chunk cannot be fetched, if the manifest contradicts itself or what was sent before, or if there is no `room`
/// for the state.
pub async fn download(
    chunk_client: &ChunkClient,
    cache: Option<&Arc<ChunkDirectory>>,
    manifest: Manifest,
    ledger: Ledger,
    room: Room,
) -> Result<Received, TransferError> {
    let from_cache = cache.cloned();
    let (mut assembler, missing) = blocking(move || {
        let mut assembler = Assembler::new(manifest, ledger, room)?;
        let mut missing = Vec::new();
        for hash in assembler.wanted() {
            let cached = from_cache.as_ref().map(|cache| cache.get(hash));
            match cached.transpose()?.flatten() {
                Some(bytes) => assembler.place(hash, &bytes)?,
                None => missing.push(hash),
            }
        }
        Ok((assembler, missing))
    })
    .await?;
    let mut arrived = Vec::new();
    for group in missing.chunks(GROUP) {
        let fetching = async { Ok(chunk_client.get_all(group).await?) };
        // One group is put in its place while the next is being fetched.
        (assembler, arrived) = tokio::try_join!(place(assembler, arrived, cache), fetching)?;
    }
    assembler = place(assembler, arrived, cache).await?;
    let (file, delta, ledger) = blocking(move || assembler.finish()).await?;
    Ok(Received {
        file,
        delta,
        ledger,
    })
}

async fn place(
    mut assembler: Assembler,
    chunks: Vec<(ChunkHash, Bytes)>,
    cache: Option<&Arc<ChunkDirectory>>,
) -> Result<Assembler, TransferError> {
    if chunks.is_empty() {
        return Ok(assembler);
    }
    let cache = cache.cloned();
    blocking(move || {
        for (hash, bytes) in chunks {
            assembler.place(hash, &bytes)?;
            if let Some(cache) = &cache {
                cache.keep(&bytes);
            }
        }
        Ok(assembler)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, TransferError> {
    Ok(spawn_blocking(work).await??)
}
