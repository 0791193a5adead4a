//! Files and messages about them on the *http* transport.
//!
//! **Invariant:** blocking work runs where blocking is allowed.

use crate::{ContentReader, ContentWriter, FilesError, errors::at};
use baton_chunks::ChunkDirectory;
use baton_protocol::{
    CHUNK_BYTES, ChunkHash, INLINE_BYTES, Piece, decode_bounded, encode,
    files::{Change, Content, Payload, RelativePath},
};
use baton_transport::ChunkClient;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::{borrow::Borrow, fs::File, sync::Arc};
use tokio::task::spawn_blocking;

/// The number of chunks to transfer at once.
const GROUP: usize = 16;

/// The most bytes of one message: 20,000 files, each with the longest inline content.
const MOST_BYTES: u64 = 384 << 20;
/// The same for a cell's changes, which may be 50,000.
const MOST_CHANGED_BYTES: u64 = 1 << 30;
/// The most elements in all lists of one message: 50,000 files, and their chunks.
const MOST_ELEMENTS: usize = 1 << 19;

/// Sends the first `bytes` of a file to the broker: those that it had when it was found. Errors name its path.
pub async fn read_file(
    chunk_client: &ChunkClient,
    path: &RelativePath,
    file: File,
    bytes: u64,
) -> Result<Content, FilesError> {
    let mut reader = ContentReader::new(file, bytes);
    loop {
        let batch;
        (reader, batch) = spawn_blocking(move || {
            let batch = reader.next_batch();
            (reader, batch)
        })
        .await?;
        let batch = batch.map_err(at(path.as_path()))?;
        if batch.is_empty() {
            return reader.finish().map_err(at(path.as_path()));
        }
        chunk_client.put_missing(batch).await?;
    }
}

/// Fills a file. Chunks in the cache are not fetched, but the broker must confirm that they belong
/// to the notebook. Fetched chunks are added to the cache.
pub async fn write_file<F: Borrow<File> + Send + 'static>(
    chunk_client: &ChunkClient,
    cache: Option<&Arc<ChunkDirectory>>,
    content: Content,
    file: F,
) -> Result<F, FilesError> {
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
    let foreign = chunk_client.missing(&cached).await?;
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
        let fetched = chunk_client.get_all(group).await?;
        let cache = cache.clone();
        writer = spawn_blocking(move || {
            for (hash, bytes) in fetched {
                writer.place(hash, &bytes)?;
                if let Some(cache) = &cache {
                    cache.keep(&bytes);
                }
            }
            Ok::<_, FilesError>(writer)
        })
        .await??;
    }
    spawn_blocking(move || writer.finish()).await?
}

pub async fn send_payload(
    chunk_client: &ChunkClient,
    message: &impl Serialize,
) -> Result<Payload, FilesError> {
    let bytes = Bytes::from(encode(message));
    if bytes.len() <= INLINE_BYTES {
        return Ok(Payload(vec![Piece::Inline(bytes)]));
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
    chunk_client.put_missing(chunks).await?;
    Ok(Payload(pieces))
}

/// A payload for a message that is always short.
pub fn small_payload(message: &impl Serialize) -> Payload {
    Payload(vec![Piece::Inline(Bytes::from(encode(message)))])
}

/// Reads a message from a sender that is not trusted.
pub async fn open_payload<Message: DeserializeOwned>(
    chunk_client: &ChunkClient,
    payload: &Payload,
) -> Result<Message, FilesError> {
    open(chunk_client, payload, MOST_BYTES).await
}

/// Reads a cell's changes to files.
pub async fn open_changes(
    chunk_client: &ChunkClient,
    payload: &Payload,
) -> Result<Vec<Change>, FilesError> {
    open(chunk_client, payload, MOST_CHANGED_BYTES).await
}

async fn open<Message: DeserializeOwned>(
    chunk_client: &ChunkClient,
    payload: &Payload,
    most_bytes: u64,
) -> Result<Message, FilesError> {
    let announced: u64 = payload.0.iter().map(Piece::bytes).sum();
    if announced > most_bytes {
        return Err(FilesError::TooLarge);
    }
    let mut bytes = Vec::new();
    for piece in &payload.0 {
        match piece {
            Piece::Inline(part) => bytes.extend_from_slice(part),
            Piece::Stored { hash, .. } => {
                for (_, part) in chunk_client.get_all(&[*hash]).await? {
                    if part.len() as u64 != piece.bytes() {
                        return Err(FilesError::Pieces);
                    }
                    bytes.extend_from_slice(&part);
                }
            }
        }
    }
    Ok(decode_bounded(&bytes, MOST_ELEMENTS)?)
}
