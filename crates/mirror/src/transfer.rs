//! Files and messages about them on the *http* lane.
//!
//! **Invariant:** blocking work is done where blocking is allowed.

use std::fs::File;
use std::sync::Arc;

use baton_chunks::ChunkDirectory;
use baton_protocol::files::{Content, Parcel};
use baton_protocol::{CHUNK_BYTES, ChunkHash, INLINE_BYTES, Piece, decode, encode};
use baton_transport::ChunkLane;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use crate::{ContentReader, ContentWriter, FilesError};

/// Chunks that are on their way at once.
const GROUP: usize = 16;

/// Brings the bytes of a file to the broker.
pub async fn read_file(lane: &ChunkLane, file: File) -> Result<Content, FilesError> {
    let mut reader = ContentReader::new(file);
    loop {
        let batch;
        (reader, batch) = spawn_blocking(move || {
            let batch = reader.next_batch();
            (reader, batch)
        })
        .await?;
        let batch = batch.map_err(unread)?;
        if batch.is_empty() {
            return reader.finish().map_err(unread);
        }
        upload(lane, batch).await?;
    }
}

/// Fills a file. Chunks that are in the cache are not fetched, but the broker has to say that they are the notebook's;
/// those that are fetched are kept there.
pub async fn write_file(
    lane: &ChunkLane,
    cache: Option<&Arc<ChunkDirectory>>,
    content: Content,
    file: File,
) -> Result<File, FilesError> {
    let cache = cache.cloned();
    let from_cache = cache.clone();
    let (writer, cached, mut missing) = spawn_blocking(move || {
        let writer = ContentWriter::new(file, &content)?;
        let is_cached = |hash: &ChunkHash| {
            let cache = from_cache.as_ref();
            cache.is_some_and(|cache| cache.contains(*hash))
        };
        let (cached, missing): (Vec<_>, Vec<_>) = writer.wanted().into_iter().partition(is_cached);
        Ok::<_, FilesError>((writer, cached, missing))
    })
    .await??;
    let foreign = lane.missing(&cached).await?;
    let from_cache = cache.clone();
    let (mut writer, lost) = spawn_blocking(move || {
        let mut writer = writer;
        let mut lost = foreign.clone();
        for hash in cached.into_iter().filter(|hash| !foreign.contains(hash)) {
            match from_cache
                .as_ref()
                .map_or(Ok(None), |cache| cache.get(hash))?
            {
                Some(bytes) => writer.place(hash, &bytes)?,
                None => lost.push(hash),
            }
        }
        Ok::<_, FilesError>((writer, lost))
    })
    .await??;
    missing.extend(lost);
    for group in missing.chunks(GROUP) {
        let fetched = download(lane, group).await?;
        let cache = cache.clone();
        writer = spawn_blocking(move || {
            for (hash, bytes) in fetched {
                writer.place(hash, &bytes)?;
                if let Some(Err(error)) = cache.as_ref().map(|cache| cache.put(&bytes)) {
                    tracing::warn!(%error, "A chunk of a file could not be kept in the worker's cache");
                }
            }
            Ok::<_, FilesError>(writer)
        })
        .await??;
    }
    spawn_blocking(move || writer.finish()).await?
}

pub async fn send_parcel(lane: &ChunkLane, message: &impl Serialize) -> Result<Parcel, FilesError> {
    let bytes = Bytes::from(encode(message));
    if bytes.len() <= INLINE_BYTES {
        return Ok(Parcel(vec![Piece::Inline(bytes)]));
    }
    let starts = (0..bytes.len()).step_by(CHUNK_BYTES);
    let chunks: Vec<(ChunkHash, Bytes)> = starts
        .map(|start| {
            let chunk = bytes.slice(start..bytes.len().min(start + CHUNK_BYTES));
            (baton_chunks::hash(&chunk), chunk)
        })
        .collect();
    let piece = |(hash, chunk): &(ChunkHash, Bytes)| Piece::Stored {
        hash: *hash,
        bytes: u32::try_from(chunk.len()).unwrap_or(u32::MAX),
    };
    let pieces = chunks.iter().map(piece).collect();
    upload(lane, chunks).await?;
    Ok(Parcel(pieces))
}

/// For what is short in any case.
pub fn small_parcel(message: &impl Serialize) -> Parcel {
    Parcel(vec![Piece::Inline(Bytes::from(encode(message)))])
}

pub async fn open_parcel<Message: DeserializeOwned>(
    lane: &ChunkLane,
    parcel: &Parcel,
) -> Result<Message, FilesError> {
    let mut bytes = Vec::new();
    for piece in &parcel.0 {
        match piece {
            Piece::Inline(part) => bytes.extend_from_slice(part),
            Piece::Stored { hash, .. } => {
                for (_, part) in download(lane, &[*hash]).await? {
                    bytes.extend_from_slice(&part);
                }
            }
        }
    }
    Ok(decode(&bytes)?)
}

async fn upload(lane: &ChunkLane, mut chunks: Vec<(ChunkHash, Bytes)>) -> Result<(), FilesError> {
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    let missing = lane.missing(&hashes).await?;
    chunks.retain(|(hash, _)| missing.contains(hash));
    if !chunks.is_empty() {
        lane.put(&chunks).await?;
    }
    Ok(())
}

async fn download(
    lane: &ChunkLane,
    hashes: &[ChunkHash],
) -> Result<Vec<(ChunkHash, Bytes)>, FilesError> {
    let mut chunks = Vec::with_capacity(hashes.len());
    lane.get(hashes, |hash, bytes| {
        chunks.push((hash, bytes));
        Ok(())
    })
    .await?;
    Ok(chunks)
}

fn unread(source: std::io::Error) -> FilesError {
    FilesError::Io {
        path: "a file that leaves".into(),
        source,
    }
}
