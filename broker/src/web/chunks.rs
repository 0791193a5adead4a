//! The *http* transport: chunks by the hash of their bytes.
//!
//! In: `POST /v1/chunks/missing`, `PUT /v1/chunks`, `POST /v1/chunks/get`. Lists of names are
//! MessagePack. Chunks are a sequence of `[length: u32, big endian][bytes]`. Every request is about
//! an account: that of the notebook, or, for a worker, that of the notebook whose job it has
//! ([`OnAccount`]). A separate process may handle the bytes (`chunk_listener`).
//!
//! **Invariant:** the response for a chunk that the account does not hold is the same as for a
//! missing one. A request has only a few chunks in memory at a time, however many it moves.

use super::{Caller, OfBody, Shared, chunk_error::ChunkError};
use crate::{
    chunk_store::ChunkStore, clock::unix_ms, engine::Leadership, people::worker_id, web::ApiError,
};
use axum::{
    Extension, Router,
    body::{Body, BodyDataStream, Bytes},
    extract::{DefaultBodyLimit, FromRequestParts, Query, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::{post, put},
};
use baton_broker_queue::{Account, Identity};
use baton_broker_store::{PublicFile, StoreError};
use baton_chunks::ChunkDirectory;
use baton_protocol::{CHUNK_BYTES, ChunkHash, NotebookId, counted_bytes, decode, encode};
use bytes::{Buf, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// About 30,000 names. Peers send fewer at once; each needs a lookup.
pub(super) const NAMES_BYTES: usize = 1 << 20;
/// Chunks are stored after this many bytes have arrived.
const BATCH_BYTES: usize = 4 << 20;
/// For one request; peers send 32. Small chunks cost the database as much as large ones.
const MOST_CHUNKS: usize = 1024;
/// The number of chunks for which a request counts as one more.
const COUNTED_CHUNKS: usize = 32;
/// How many chunks are read ahead of the network.
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

/// The account that a request about chunks concerns. The request has been counted for its sender.
pub(super) struct OnAccount {
    pub(super) account: Account,
    pub(super) identity: Identity,
}

impl OnAccount {
    /// The account of the party that the request names, after `left` has restricted that.
    pub(super) async fn of(
        parts: &mut Parts,
        shared: &Shared,
        left: impl FnOnce(Party) -> Party + Send,
    ) -> Result<Self, Response> {
        let Query(party) = Query::<Party>::from_request_parts(parts, shared)
            .await
            .map_err(IntoResponse::into_response)?;
        let Extension(caller) = Extension::<Caller>::from_request_parts(parts, shared)
            .await
            .map_err(IntoResponse::into_response)?;
        let identity = caller.identity.clone();
        let account = async {
            admit(shared, &identity)?;
            account(shared, &caller, left(party)).await
        };
        let account = account.await.map_err(IntoResponse::into_response)?;
        Ok(Self { account, identity })
    }
}

#[derive(serde::Deserialize)]
pub(super) struct Party {
    /// The owner as the proxy names it in its hello.
    owner: Option<String>,
    course: Option<String>,
    /// The notebook whose job the worker has.
    notebook: Option<NotebookId>,
}

impl Party {
    /// Ignores the notebook: the request concerns the caller's own account.
    pub(super) fn without_notebook(self) -> Self {
        Self {
            notebook: None,
            ..self
        }
    }
}

impl FromRequestParts<Shared> for OnAccount {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Response> {
        Self::of(parts, shared, |party| party).await
    }
}

pub(super) fn admit(shared: &Shared, identity: &Identity) -> Result<(), ChunkError> {
    shared.chunk_limits.admit(identity).map_err(|_| {
        shared.metrics.limited();
        ChunkError::TooOften
    })
}

/// Counts the chunks of an admitted request.
pub(super) fn charge(shared: &Shared, identity: &Identity, chunks: usize) {
    let more = chunks / COUNTED_CHUNKS;
    shared.chunk_limits.charge(identity, more);
}

pub(super) async fn account(
    shared: &Shared,
    caller: &Caller,
    party: Party,
) -> Result<Account, ChunkError> {
    // Before this broker is the leader, its database may be outdated.
    if *shared.leadership.borrow() != Leadership::Leader {
        return Err(StoreError::NotLeader.into());
    }
    let account = match party.notebook {
        None if !caller.identity.may_be_person() => return Err(ChunkError::Nobody),
        None => {
            let said = party.owner.unwrap_or_default();
            caller.identity.account(said, party.course)?
        }
        Some(_) if !caller.identity.may_be_worker() => return Err(ChunkError::NotAWorker),
        Some(notebook) => {
            let worker = caller.identity.worker().map(worker_id);
            let served = shared.store.accounts().served(notebook, worker).await?;
            served.ok_or(ChunkError::NoJob { notebook })?
        }
    };
    match account.owner.is_empty() {
        true => Err(ChunkError::Nobody),
        false => Ok(account),
    }
}

/// Returns the chunks that must be sent. The others are kept for another term.
async fn missing(
    State(shared): State<Shared>,
    OnAccount { account, identity }: OnAccount,
    body: Bytes,
) -> Result<Vec<u8>, ChunkError> {
    let hashes: Vec<ChunkHash> = decode(&body)?;
    charge(&shared, &identity, hashes.len());
    let here = keep(&shared, &account, &hashes).await?;
    let missing: Vec<ChunkHash> = hashes
        .into_iter()
        .filter(|hash| !here.contains_key(hash))
        .collect();
    Ok(encode(&missing))
}

/// The sizes of those chunks that exist and that the account may name. They are kept for another term.
pub(super) async fn keep(
    shared: &Shared,
    account: &Account,
    hashes: &[ChunkHash],
) -> Result<HashMap<ChunkHash, u64>, ChunkError> {
    let ChunkStore::Folder(chunks) = &shared.chunks else {
        let kept = ChunkStore::keep_objects(&shared.store, account, hashes, unix_ms()).await?;
        shared.quotas.add(&account.owner, counted(kept.values()));
        return Ok(kept);
    };
    let mut held = shared.store.chunks().held(account, hashes).await?;
    let here = whole(chunks, held.clone()).await?;
    held.retain(|hash, _| here.contains(hash));
    shared.quotas.add(&account.owner, counted(held.values()));
    let named: Vec<Named> = held.iter().map(|(hash, bytes)| (*hash, *bytes)).collect();
    shared
        .store
        .chunks()
        .hold(account, &named, unix_ms())
        .await?;
    // Checked again, because a sweep may have run in between. It cannot delete what has been touched since.
    let here = whole(chunks, held.clone()).await?;
    held.retain(|hash, _| here.contains(hash));
    Ok(held)
}

/// Reads chunks and writes them to the disk. Returns how many were damaged, and are removed now. An object store has
/// done all of that.
pub(super) async fn sync(shared: &Shared, hashes: &[ChunkHash]) -> Result<usize, ChunkError> {
    let ChunkStore::Folder(chunks) = &shared.chunks else {
        return Ok(0);
    };
    let (chunks, hashes) = (Arc::clone(chunks), hashes.to_vec());
    let sync = move || {
        let mut damaged = 0;
        for hash in &hashes {
            damaged += usize::from(chunks.get(*hash)?.is_none());
        }
        if damaged == 0 {
            chunks.sync(&hashes)?;
        }
        Ok(damaged)
    };
    blocking(sync).await?
}

async fn put_chunks(
    State(shared): State<Shared>,
    OnAccount { account, identity }: OnAccount,
    Extension(OfBody(meter)): Extension<OfBody>,
    body: Body,
) -> Result<StatusCode, ChunkError> {
    let folder = in_folder(&shared)?;
    let mut reader = ChunkReader::of(body);
    // First rows, then files: so a sweep cannot delete a file in between, and no file lacks a row.
    while let Some(batch) = reader.next_batch().await? {
        let (named, batch) = named(batch).await?;
        charge(&shared, &identity, named.len());
        hold(&shared, &account, &named).await?;
        write(folder, batch).await?;
        drop(meter.finished());
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a sequence of chunks in batches of a few megabytes.
pub(super) struct ChunkReader {
    parts: BodyDataStream,
    waiting: BytesMut,
    count: usize,
    ended: bool,
}

impl ChunkReader {
    pub(super) fn of(body: Body) -> Self {
        Self {
            parts: body.into_data_stream(),
            waiting: BytesMut::new(),
            count: 0,
            ended: false,
        }
    }

    /// Returns `None` after the last chunk.
    pub(super) async fn next_batch(&mut self) -> Result<Option<Vec<Bytes>>, ChunkError> {
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        while batch_bytes < BATCH_BYTES && !self.ended {
            if let Some(chunk) = next_chunk(&mut self.waiting)? {
                self.count += 1;
                if self.count > MOST_CHUNKS {
                    return Err(ChunkError::TooMany { most: MOST_CHUNKS });
                }
                batch_bytes += chunk.len();
                batch.push(chunk);
                continue;
            }
            match self
                .parts
                .try_next()
                .await
                .map_err(ChunkError::of_request)?
            {
                Some(part) => self.waiting.extend_from_slice(&part),
                None if self.waiting.is_empty() => self.ended = true,
                None => return Err(ChunkError::Cut),
            }
        }
        Ok((!batch.is_empty()).then_some(batch))
    }
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

/// The hash and the size of a chunk.
pub(super) type Named = (ChunkHash, u64);

pub(super) async fn named(batch: Vec<Bytes>) -> Result<(Vec<Named>, Vec<Bytes>), ChunkError> {
    blocking(move || {
        let named = |chunk: &Bytes| (baton_chunks::hash(chunk), chunk.len() as u64);
        (batch.iter().map(named).collect(), batch)
    })
    .await
}

/// Records that the account holds these chunks. It must have sent their bytes.
pub(super) async fn hold(
    shared: &Shared,
    account: &Account,
    named: &[Named],
) -> Result<(), ChunkError> {
    within_quota(shared, account, named).await?;
    Ok(shared
        .store
        .chunks()
        .hold(account, named, unix_ms())
        .await?)
}

pub(super) async fn write(
    chunks: &Arc<ChunkDirectory>,
    batch: Vec<Bytes>,
) -> Result<(), ChunkError> {
    let chunks = Arc::clone(chunks);
    let put = move |chunk: &Bytes| chunks.put(chunk).map(drop);
    Ok(blocking(move || batch.iter().try_for_each(put)).await??)
}

async fn within_quota(
    shared: &Shared,
    account: &Account,
    named: &[Named],
) -> Result<(), ChunkError> {
    let named: HashMap<ChunkHash, u64> = named.iter().copied().collect();
    let take = |bytes| shared.quotas.take(&account.owner, bytes);
    if take(counted(named.values())).await?.is_none() {
        return Ok(());
    }
    // Chunks that are sent again take no additional space.
    let hashes: Vec<ChunkHash> = named.keys().copied().collect();
    let held = shared.store.chunks().held(account, &hashes).await?;
    let is_new = |(hash, _): &(&ChunkHash, &u64)| !held.contains_key(hash);
    let new = named.iter().filter(is_new).map(|(_, bytes)| bytes);
    match take(counted(new)).await? {
        None => Ok(()),
        Some(exceeded) => Err(ChunkError::of_quota(account, exceeded)),
    }
}

/// What chunks with these lengths count together.
fn counted<'a>(lengths: impl Iterator<Item = &'a u64>) -> u64 {
    lengths.map(|bytes| counted_bytes(*bytes)).sum()
}

async fn get(
    State(shared): State<Shared>,
    OnAccount { account, identity }: OnAccount,
    body: Bytes,
) -> Result<Response, ChunkError> {
    let hashes: Vec<ChunkHash> = decode(&body)?;
    charge(&shared, &identity, hashes.len());
    let folder = in_folder(&shared)?;
    let held = shared.store.chunks().held(&account, &hashes).await?;
    read(folder, hashes, held.into_keys().collect()).await
}

/// Sends all of these chunks, or fails unless each is in `held` and exists.
pub(super) async fn read(
    chunks: &Arc<ChunkDirectory>,
    hashes: Vec<ChunkHash>,
    held: Vec<ChunkHash>,
) -> Result<Response, ChunkError> {
    let here = present(chunks, held).await?;
    if let Some(hash) = hashes.iter().find(|hash| !here.contains(hash)) {
        return Err(ChunkError::Unknown { hash: *hash });
    }
    let chunks = Arc::clone(chunks);
    let frames = stream::iter(hashes)
        .map(move |hash| {
            let chunks = Arc::clone(&chunks);
            async move {
                let chunk = blocking(move || chunks.get(hash)).await??;
                let chunk = chunk.ok_or(ChunkError::Unknown { hash })?;
                let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
                Ok::<_, ChunkError>([Bytes::copy_from_slice(&length.to_be_bytes()), chunk])
            }
        })
        .buffered(READ_AHEAD)
        // An error at this point aborts the response, which the reader notices.
        .inspect_err(|error| tracing::warn!("A response with chunks broke off: {error}"))
        .map_ok(|parts| stream::iter(parts.map(Ok::<_, ChunkError>)))
        .try_flatten();
    Ok(Body::from_stream(frames).into_response())
}

/// Makes the chunks of an account also the course's. Returns how many of them exist.
pub(crate) async fn hold_public(
    shared: &Shared,
    from: &Account,
    course: &str,
    chunks: &[Named],
    now_ms: i64,
) -> Result<usize, ApiError> {
    let holder = PublicFile::holder(course);
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    match &shared.chunks {
        ChunkStore::Folder(folder) => {
            shared.store.chunks().hold(&holder, chunks, now_ms).await?;
            let here = whole(folder, chunks.iter().copied().collect()).await;
            here.map(|here| here.len()).map_err(|_| ApiError::Ending)
        }
        ChunkStore::Objects(_) => {
            let rows = shared.store.objects();
            rows.share(from, &holder, &hashes, now_ms).await?;
            // Chunks that the course already had are kept for another term. The publisher may hold
            // them only through the course.
            rows.share(&holder, &holder, &hashes, now_ms).await?;
            Ok(rows.held(&holder, &hashes).await?.len())
        }
    }
}

/// The broker's folder, if the broker itself transfers the bytes.
pub(super) fn in_folder(shared: &Shared) -> Result<&Arc<ChunkDirectory>, ChunkError> {
    match &shared.chunks {
        ChunkStore::Folder(folder) => Ok(folder),
        ChunkStore::Objects(_) => Err(ChunkError::InObjects),
    }
}

async fn present(
    chunks: &Arc<ChunkDirectory>,
    hashes: Vec<ChunkHash>,
) -> Result<HashSet<ChunkHash>, ChunkError> {
    let chunks = Arc::clone(chunks);
    let is_here = move |hash: &ChunkHash| chunks.contains(*hash);
    blocking(move || hashes.into_iter().filter(is_here).collect()).await
}

/// Those of these chunks that exist with all their bytes.
async fn whole(
    chunks: &Arc<ChunkDirectory>,
    named: HashMap<ChunkHash, u64>,
) -> Result<HashSet<ChunkHash>, ChunkError> {
    let chunks = Arc::clone(chunks);
    let is_whole = move |(hash, bytes): &Named| chunks.size(*hash) == Some(*bytes);
    let whole = move || named.into_iter().filter(is_whole).map(|(hash, _)| hash);
    blocking(move || whole().collect()).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ChunkError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ChunkError::Ending)
}
