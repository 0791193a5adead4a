//! The *http* lane: chunks by the name of their bytes.
//!
//! In: `POST /v1/chunks/missing`, `PUT /v1/chunks`, `POST /v1/chunks/get`. Lists of names are MessagePack; chunks are
//! `[length: u32, big endian][bytes]`, again and again.
//!
//! **Invariant:** a request holds a few chunks in memory at a time, however many it moves.

use super::Shared;
use crate::{engine::unix_ms, store::StoreError};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{post, put},
};
use baton_blobs::{BlobError, ChunkDirectory};
use baton_protocol::{CHUNK_BYTES, ChunkHash, decode, encode};
use bytes::{Buf, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// The names of a terabyte.
const NAMES_BYTES: usize = 64 << 20;
/// Chunks are stored when so many bytes have come.
const BATCH_BYTES: usize = 4 << 20;
/// Chunks that are read ahead of the network.
const READ_AHEAD: usize = 2;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/chunks/missing", post(missing))
        .route("/v1/chunks/get", post(get))
        .layer(DefaultBodyLimit::max(NAMES_BYTES))
        .merge(
            Router::new()
                .route("/v1/chunks", put(put_chunks))
                .layer(DefaultBodyLimit::disable()),
        )
}

#[derive(Debug, thiserror::Error)]
enum ChunkError {
    #[error("The list of chunks cannot be read")]
    List(#[from] baton_protocol::DecodeError),
    #[error("Chunk {hash} is not here")]
    Unknown { hash: ChunkHash },
    #[error("A chunk has at most {CHUNK_BYTES} bytes, not {bytes}")]
    TooLarge { bytes: usize },
    #[error("The request ended inside a chunk")]
    Cut,
    #[error("The request broke off")]
    Request(#[source] axum::Error),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("The broker is ending")]
    Ending,
}

impl IntoResponse for ChunkError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::List(_) | Self::TooLarge { .. } | Self::Cut | Self::Request(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::Unknown { .. } => StatusCode::NOT_FOUND,
            Self::Blob(BlobError::Full { .. }) => {
                tracing::error!("{self}");
                StatusCode::INSUFFICIENT_STORAGE
            }
            // Whoever asks tries again.
            Self::Store(error) if error.may_pass() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Blob(_) | Self::Store(_) => {
                tracing::error!("A request for chunks failed: {self}");
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Ending => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, self.to_string()).into_response()
    }
}

/// Which of these chunks have to be sent. Those that are here stay for another term.
async fn missing(State(shared): State<Shared>, body: Bytes) -> Result<Vec<u8>, ChunkError> {
    let hashes: Vec<ChunkHash> = decode(&body)?;
    let here = present(&shared.chunks, hashes.clone()).await?;
    let touched: Vec<ChunkHash> = hashes
        .iter()
        .zip(here)
        .filter_map(|(hash, here)| here.then_some(*hash))
        .collect();
    shared.store.touch_chunks(&touched, unix_ms()).await?;
    // Once more, because a sweep may have come between; from the touch on it leaves them.
    let here = present(&shared.chunks, hashes.clone()).await?;
    let missing: Vec<ChunkHash> = hashes
        .into_iter()
        .zip(here)
        .filter_map(|(hash, here)| (!here).then_some(hash))
        .collect();
    Ok(encode(&missing))
}

async fn put_chunks(State(shared): State<Shared>, body: Body) -> Result<StatusCode, ChunkError> {
    let mut parts = body.into_data_stream();
    let mut waiting = BytesMut::new();
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    while let Some(part) = parts.try_next().await.map_err(ChunkError::Request)? {
        waiting.extend_from_slice(&part);
        while let Some(chunk) = next_chunk(&mut waiting)? {
            batch_bytes += chunk.len();
            batch.push(chunk);
        }
        if batch_bytes >= BATCH_BYTES {
            store_chunks(&shared, std::mem::take(&mut batch)).await?;
            batch_bytes = 0;
        }
    }
    if !waiting.is_empty() {
        return Err(ChunkError::Cut);
    }
    store_chunks(&shared, batch).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn next_chunk(waiting: &mut BytesMut) -> Result<Option<Bytes>, ChunkError> {
    let Some(length) = waiting.first_chunk::<4>() else {
        return Ok(None);
    };
    let bytes = u32::from_be_bytes(*length) as usize;
    if bytes > CHUNK_BYTES {
        return Err(ChunkError::TooLarge { bytes });
    }
    if waiting.len() < 4 + bytes {
        waiting.reserve(4 + bytes - waiting.len());
        return Ok(None);
    }
    waiting.advance(4);
    Ok(Some(waiting.split_to(bytes).freeze()))
}

/// Rows first, then files: no sweep can come between, and no file is without a row.
async fn store_chunks(shared: &Shared, batch: Vec<Bytes>) -> Result<(), ChunkError> {
    let (hashes, batch) = blocking(move || {
        let hashes: Vec<ChunkHash> = batch.iter().map(|chunk| baton_blobs::hash(chunk)).collect();
        (hashes, batch)
    })
    .await?;
    shared.store.touch_chunks(&hashes, unix_ms()).await?;
    let chunks = Arc::clone(&shared.chunks);
    blocking(move || {
        batch
            .iter()
            .try_for_each(|chunk| chunks.put(chunk).map(drop))
    })
    .await??;
    Ok(())
}

async fn get(State(shared): State<Shared>, body: Bytes) -> Result<Response, ChunkError> {
    let hashes: Vec<ChunkHash> = decode(&body)?;
    let here = present(&shared.chunks, hashes.clone()).await?;
    if let Some((hash, _)) = hashes.iter().zip(here).find(|(_, here)| !here) {
        return Err(ChunkError::Unknown { hash: *hash });
    }
    let frames = stream::iter(hashes)
        .map(move |hash| {
            let chunks = Arc::clone(&shared.chunks);
            async move {
                let chunk = blocking(move || chunks.get(hash)).await??;
                let chunk = chunk.ok_or(ChunkError::Unknown { hash })?;
                let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
                Ok::<_, ChunkError>([Bytes::copy_from_slice(&length.to_be_bytes()), chunk])
            }
        })
        .buffered(READ_AHEAD)
        // An error here breaks the response off, which the reader sees.
        .inspect_err(|error| tracing::warn!("A response with chunks broke off: {error}"))
        .map_ok(|parts| stream::iter(parts.map(Ok::<_, ChunkError>)))
        .try_flatten();
    Ok(Body::from_stream(frames).into_response())
}

async fn present(
    chunks: &Arc<ChunkDirectory>,
    hashes: Vec<ChunkHash>,
) -> Result<Vec<bool>, ChunkError> {
    let chunks = Arc::clone(chunks);
    blocking(move || hashes.iter().map(|hash| chunks.contains(*hash)).collect()).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ChunkError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ChunkError::Ending)
}
