//! The *object_store* transport: permits clients to move chunks without the broker.
//!
//! In: `POST /v1/chunks/grants/upload` with names and sizes, and `/v1/chunks/grants/download` with
//! names. Later `/v1/chunks/uploaded`, and `/v1/chunks/damaged` from a client that could not use
//! what it read. As in the http transport, every request concerns an account, and the same rules
//! decide what it may name.
//!
//! **Invariant:** no client gets a grant for an object of another account, except for public chunks
//! of its course. An uploaded object gives its account access only after the broker has seen it in
//! the store with the right size.

use super::{
    Shared,
    chunk_error::ChunkError,
    chunks::{self, NAMES_BYTES, Named, OnAccount},
};
use crate::{chunk_store::ChunkStore, clock::unix_ms, objects::Objects};
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    routing::post,
};
use baton_broker_queue::Account;
use baton_broker_store::ObjectRow;
use baton_protocol::{CHUNK_BYTES, ChunkHash, Grants, counted_bytes, decode, encode};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// For one request; peers ask for 32.
const MOST_GRANTS: usize = 256;
/// The broker reads each of these objects, which is slow but rare.
const MOST_DAMAGED: usize = 32;
/// How many uploads of one person may be pending if the store does not fix their length. Concurrent
/// requests may exceed this slightly.
const MOST_OPEN: u64 = 1024;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/chunks/grants/upload", post(grant_uploads))
        .route("/v1/chunks/grants/download", post(grant_downloads))
        .route("/v1/chunks/uploaded", post(uploaded))
        .route("/v1/chunks/damaged", post(damaged))
        .layer(DefaultBodyLimit::max(NAMES_BYTES))
}

async fn grant_uploads(
    State(shared): State<Shared>,
    OnAccount { account, identity }: OnAccount,
    body: Bytes,
) -> Result<Vec<u8>, ChunkError> {
    let ChunkStore::Objects(objects) = &shared.chunks else {
        return Ok(encode(&Grants::Broker {}));
    };
    let wanted: Vec<Named> = decode(&body)?;
    bounded(wanted.len(), MOST_GRANTS)?;
    chunks::charge(&shared, &identity, wanted.len());
    // Removes duplicates.
    let wanted: BTreeMap<ChunkHash, u64> = wanted.into_iter().collect();
    if let Some(bytes) = wanted.values().find(|bytes| **bytes > CHUNK_BYTES as u64) {
        let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
        return Err(ChunkError::TooLarge { bytes });
    }
    let rows = expect(&shared, objects, &account, &wanted).await?;
    let grants = objects.upload_grants(rows).await?;
    Ok(encode(&Grants::Store { grants }))
}

/// Permits the account to upload these objects and returns their rows. Omits those that it already has.
async fn expect(
    shared: &Shared,
    objects: &Objects,
    account: &Account,
    wanted: &BTreeMap<ChunkHash, u64>,
) -> Result<Vec<ObjectRow>, ChunkError> {
    let rows = shared.store.objects();
    let hashes: Vec<ChunkHash> = wanted.keys().copied().collect();
    let own = rows.own(account, &hashes).await?;
    has_announced_lengths(&own, wanted)?;
    let begun = wanted.keys().filter(|hash| !own.contains_key(hash)).count() as u64;
    if begun > 0
        && !objects.fixes_length()
        && rows.pending_of(&account.owner).await? + begun > MOST_OPEN
    {
        return Err(ChunkError::TooManyUploads { most: MOST_OPEN });
    }
    let is_counted = |hash: &ChunkHash, bytes: u64| {
        let row = own.get(hash);
        row.is_some_and(|(row, is_stored)| *is_stored || row.bytes >= bytes)
    };
    let new = wanted
        .iter()
        .filter(|(hash, bytes)| !is_counted(hash, **bytes));
    let new_bytes: u64 = new.map(|(_, bytes)| counted_bytes(*bytes)).sum();
    if let Some(exceeded) = shared.quotas.take(&account.owner, new_bytes).await? {
        return Err(ChunkError::of_quota(account, exceeded));
    }
    // Held until the rows are written.
    let Some(_reservation) = objects.space.reserve(&shared.store, new_bytes).await? else {
        let limit_bytes = objects.limit_bytes;
        return Err(ChunkError::StoreLimit { limit_bytes });
    };
    let expected: Vec<ObjectRow> = wanted
        .iter()
        .filter(|(hash, _)| !own.get(hash).is_some_and(|(_, is_stored)| *is_stored))
        .map(|(hash, bytes)| ObjectRow {
            hash: *hash,
            object: uuid::Uuid::new_v4().simple().to_string(),
            bytes: *bytes,
        })
        .collect();
    rows.allow_upload(account, &expected, unix_ms()).await?;
    let own = rows.own(account, &hashes).await?;
    has_announced_lengths(&own, wanted)?;
    let pending = own.into_values().filter(|(_, is_stored)| !is_stored);
    Ok(pending.map(|(row, _)| row).collect())
}

/// Refuses a second length for a chunk whose upload is pending. It would permit a second object
/// within the same quota.
fn has_announced_lengths(
    own: &HashMap<ChunkHash, (ObjectRow, bool)>,
    wanted: &BTreeMap<ChunkHash, u64>,
) -> Result<(), ChunkError> {
    let is_other = |(hash, (row, is_stored)): &(&ChunkHash, &(ObjectRow, bool))| {
        !is_stored && wanted.get(hash).is_some_and(|bytes| *bytes != row.bytes)
    };
    match own.iter().find(is_other) {
        None => Ok(()),
        Some((hash, (row, _))) => Err(ChunkError::OtherLength {
            hash: *hash,
            bytes: row.bytes,
        }),
    }
}

async fn grant_downloads(
    State(shared): State<Shared>,
    OnAccount { account, identity }: OnAccount,
    body: Bytes,
) -> Result<Vec<u8>, ChunkError> {
    let ChunkStore::Objects(objects) = &shared.chunks else {
        return Ok(encode(&Grants::Broker {}));
    };
    let hashes: Vec<ChunkHash> = decode(&body)?;
    bounded(hashes.len(), MOST_GRANTS)?;
    chunks::charge(&shared, &identity, hashes.len());
    let held = shared.store.objects().held(&account, &hashes).await?;
    // Chunks that the account may not read get no grant.
    let rows = hashes.iter().filter_map(|hash| held.get(hash).cloned());
    let grants = objects.download_grants(rows.collect()).await?;
    Ok(encode(&Grants::Store { grants }))
}

/// Returns the chunks that were not found.
async fn uploaded(
    State(shared): State<Shared>,
    OnAccount { account, identity }: OnAccount,
    body: Bytes,
) -> Result<Vec<u8>, ChunkError> {
    let objects = in_objects(&shared)?;
    let hashes: BTreeSet<ChunkHash> = decode::<Vec<ChunkHash>>(&body)?.into_iter().collect();
    bounded(hashes.len(), MOST_GRANTS)?;
    chunks::charge(&shared, &identity, hashes.len());
    let hashes: Vec<ChunkHash> = hashes.into_iter().collect();
    let rows = shared.store.objects();
    let own = rows.own(&account, &hashes).await?;
    let pending = own.into_values().filter(|(_, is_stored)| !is_stored);
    let sizes = objects.sizes(pending.map(|(row, _)| row).collect()).await?;
    let mut seen = Vec::with_capacity(sizes.len());
    for (row, bytes) in sizes {
        match bytes {
            None => {}
            Some(bytes) if bytes == row.bytes => seen.push(row),
            // The row stays, so the object can be uploaded again while the grant is valid.
            Some(_) => drop(objects.delete(vec![row]).await),
        }
    }
    rows.confirm(&account, &seen, unix_ms()).await?;
    let own = rows.own(&account, &hashes).await?;
    let is_here = |hash: &ChunkHash| own.get(hash).is_some_and(|(_, is_stored)| *is_stored);
    let missing: Vec<ChunkHash> = hashes.into_iter().filter(|hash| !is_here(hash)).collect();
    Ok(encode(&missing))
}

/// Checks objects that a reader could not use, and drops those that are damaged.
async fn damaged(
    State(shared): State<Shared>,
    OnAccount { account, identity }: OnAccount,
    body: Bytes,
) -> Result<Vec<u8>, ChunkError> {
    let objects = in_objects(&shared)?;
    let hashes: Vec<ChunkHash> = decode(&body)?;
    bounded(hashes.len(), MOST_DAMAGED)?;
    // Each counts as a request, because the broker reads it.
    for _ in &hashes {
        chunks::admit(&shared, &identity)?;
    }
    let held = shared.store.objects().held(&account, &hashes).await?;
    for row in held.into_values() {
        if !objects.is_sound(&row).await? {
            tracing::warn!(
                "The object of chunk {} is damaged or gone and was forgotten",
                row.hash
            );
            discard(&shared, objects, row).await?;
        }
    }
    Ok(encode(&()))
}

async fn discard(shared: &Shared, objects: &Objects, row: ObjectRow) -> Result<(), ChunkError> {
    shared.store.objects().mark_missing(&row).await?;
    objects.delete(vec![row]).await;
    Ok(())
}

fn in_objects(shared: &Shared) -> Result<&Arc<Objects>, ChunkError> {
    match &shared.chunks {
        ChunkStore::Objects(objects) => Ok(objects),
        ChunkStore::Folder(_) => Err(ChunkError::InFolder),
    }
}

fn bounded(count: usize, most: usize) -> Result<(), ChunkError> {
    match count <= most {
        true => Ok(()),
        false => Err(ChunkError::TooManyNames { most }),
    }
}
