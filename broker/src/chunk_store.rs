//! Where the broker stores chunks: in its own folder, or in an object store that notebooks and
//! workers access directly.
//!
//! In both cases the database records who holds which chunk. In a folder, equal chunks are one
//! file. In an object store, each account has its own object, because the broker has not seen the
//! bytes: what one person uploaded under a chunk's name must never be given to another. Only public
//! chunks of a course are shared.

use crate::objects::Objects;
use anyhow::Context;
use baton_broker_queue::Account;
use baton_broker_store::{ObjectRow, PublicFile, Store, StoreError};
use baton_chunks::ChunkDirectory;
use baton_protocol::ChunkHash;
use std::{collections::HashMap, path::PathBuf, sync::Arc};
use tokio::task::spawn_blocking;

/// Opens the broker's own folder of chunks.
pub(crate) async fn open_folder(
    folder: PathBuf,
    limit_bytes: u64,
) -> anyhow::Result<Arc<ChunkDirectory>> {
    let what = format!("Failed to open the chunks in {}", folder.display());
    let opened = spawn_blocking(move || ChunkDirectory::open(folder, limit_bytes)).await?;
    Ok(Arc::new(opened.context(what)?))
}

#[derive(Clone)]
pub(crate) enum ChunkStore {
    Folder(Arc<ChunkDirectory>),
    Objects(Arc<Objects>),
}

impl ChunkStore {
    /// The sizes of those chunks that this account may name and read. In a folder, a file may still be missing.
    pub(crate) async fn held(
        &self,
        store: &Store,
        account: &Account,
        hashes: &[ChunkHash],
    ) -> Result<HashMap<ChunkHash, u64>, StoreError> {
        match self {
            Self::Folder(_) => store.chunks().held(account, hashes).await,
            Self::Objects(_) => {
                let held = store.objects().held(account, hashes).await?;
                let sized = |(hash, row): (ChunkHash, ObjectRow)| (hash, row.bytes);
                Ok(held.into_iter().map(sized).collect())
            }
        }
    }

    /// Makes public chunks of the course also the account's, and keeps all of these chunks for another term.
    pub(crate) async fn keep_objects(
        store: &Store,
        account: &Account,
        hashes: &[ChunkHash],
        now_ms: i64,
    ) -> Result<HashMap<ChunkHash, u64>, StoreError> {
        let rows = store.objects();
        let held = rows.held(account, hashes).await?;
        let own = rows.own(account, hashes).await?;
        let is_own = |hash: &ChunkHash| own.get(hash).is_some_and(|(_, is_stored)| *is_stored);
        let (own, public): (Vec<ChunkHash>, Vec<ChunkHash>) = held.into_keys().partition(is_own);
        rows.share(account, account, &own, now_ms).await?;
        let course = PublicFile::holder(&account.course);
        rows.share(&course, account, &public, now_ms).await?;
        // Read again, because a sweep may have run in between. It cannot delete what has been touched since.
        let kept = rows.own(account, hashes).await?;
        let sized = |(hash, (row, is_stored)): (ChunkHash, (ObjectRow, bool))| {
            is_stored.then_some((hash, row.bytes))
        };
        Ok(kept.into_iter().filter_map(sized).collect())
    }
}
