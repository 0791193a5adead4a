//! State on its way into a session and out of it.
//!
//! In: a manifest, or a snapshot. Out: the file that a session maps, or a manifest whose chunks the broker has.
//! Chunks are read from this worker's cache; only those that it lacks are fetched from the broker.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use baton_chunks::{Assembler, Collector, Ledger};
use baton_protocol::shim::Delta;
use baton_protocol::{ChunkHash, Manifest};
use baton_transport::ChunkClient;
use bytes::Bytes;

use super::{Access, TransferError, blocking};

/// How many chunks are in memory at once, at 1 MiB each.
const GROUP: usize = 16;

/// A state that is ready for a session's shim.
pub(crate) struct Assembled {
    pub(crate) file: OwnedFd,
    pub(crate) delta: Delta,
    pub(crate) ledger: Ledger,
}

/// Assembles all chunks of a manifest.
pub(crate) async fn assemble(
    access: &Access,
    manifest: Manifest,
    ledger: Ledger,
) -> Result<Assembled, TransferError> {
    let cache = access.cache.clone();
    let limit_bytes = access.state_limit_bytes();
    let (assembler, missing) = blocking(move || {
        let mut assembler = Assembler::new(manifest, ledger, limit_bytes)?;
        let mut missing = Vec::new();
        for hash in assembler.wanted() {
            match cache.get(hash)? {
                Some(bytes) => assembler.place(hash, &bytes)?,
                None => missing.push(hash),
            }
        }
        Ok((assembler, missing))
    })
    .await?;
    let assembler = receive(access, assembler, &missing).await?;
    let (file, delta, ledger) = blocking(move || assembler.finish()).await?;
    Ok(Assembled {
        file,
        delta,
        ledger,
    })
}

async fn receive(
    access: &Access,
    mut assembler: Assembler,
    missing: &[ChunkHash],
) -> Result<Assembler, TransferError> {
    let mut arrived = Vec::new();
    for group in missing.chunks(GROUP) {
        // One group is put in its place while the next is being fetched.
        (assembler, arrived) =
            tokio::try_join!(place(access, assembler, arrived), fetch(access, group))?;
    }
    place(access, assembler, arrived).await
}

async fn fetch(
    access: &Access,
    hashes: &[ChunkHash],
) -> Result<Vec<(ChunkHash, Bytes)>, TransferError> {
    let mut chunks = Vec::with_capacity(hashes.len());
    access
        .chunk_client
        .get(hashes, |hash, bytes| {
            chunks.push((hash, bytes));
            Ok(())
        })
        .await?;
    Ok(chunks)
}

async fn place(
    access: &Access,
    mut assembler: Assembler,
    chunks: Vec<(ChunkHash, Bytes)>,
) -> Result<Assembler, TransferError> {
    if chunks.is_empty() {
        return Ok(assembler);
    }
    let cache = access.cache.clone();
    blocking(move || {
        for (hash, bytes) in chunks {
            assembler.place(hash, &bytes)?;
            if let Err(error) = cache.put(&bytes) {
                tracing::warn!(%error, "A chunk could not be kept in the worker's cache");
            }
        }
        Ok(assembler)
    })
    .await
}

/// Reads the changes from a session and uploads them to the broker.
pub(crate) async fn collect(
    chunk_client: &ChunkClient,
    mut collector: Collector,
) -> Result<(Manifest, Ledger), TransferError> {
    loop {
        let batch;
        (collector, batch) = blocking(move || {
            let batch = collector.next_batch()?;
            Ok((collector, batch))
        })
        .await?;
        match batch {
            Some(chunks) => upload(chunk_client, chunks).await?,
            None => return Ok(collector.finish()),
        }
    }
}

async fn upload(
    chunk_client: &ChunkClient,
    mut chunks: Vec<(ChunkHash, Bytes)>,
) -> Result<(), TransferError> {
    if chunks.is_empty() {
        return Ok(());
    }
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    let missing = chunk_client.missing(&hashes).await?;
    let missing: HashSet<ChunkHash> = missing.into_iter().collect();
    chunks.retain(|(hash, _)| missing.contains(hash));
    if !chunks.is_empty() {
        chunk_client.put(&chunks).await?;
    }
    Ok(())
}
