//! Who holds which chunk and last named it when. Deletes chunks for the sweep.
//!
//! **Invariant:** a chunk has a row whenever it has a file: its first row is written before the file, and its
//! last row is deleted after it. A file is removed only while the writer is held. So if a caller touches a
//! chunk and *then* looks for its file, a concurrent sweep cannot remove the file.

use super::{
    Store, StoreError,
    columns::{account, count, number},
    row::Row,
    statement::{Statement, sql},
};
use baton_broker_queue::Account;
use baton_protocol::ChunkHash;
use std::collections::{HashMap, HashSet};

/// Chunks deleted in one transaction. Writes of the queue wait for each.
const DELETE_BATCH: usize = 64;
/// Chunks named in one statement.
pub(super) const NAMED: usize = 256;
/// A chunk that this many people of a course have sent independently belongs to the course.
const COMMON_FROM: i64 = 5;

/// The chunks that each account's jobs name.
pub type Live = HashMap<Account, HashSet<ChunkHash>>;

/// A handle of the store for chunks.
#[derive(Clone, Copy)]
pub struct Chunks<'store>(pub(super) &'store Store);

impl Chunks<'_> {
    /// Returns the sizes of those chunks that this account may name and read: its own, and those
    /// that are public or common in its course.
    pub async fn held(
        self,
        account: &Account,
        hashes: &[ChunkHash],
    ) -> Result<HashMap<ChunkHash, u64>, StoreError> {
        let mut held = HashMap::with_capacity(hashes.len());
        for batch in hashes.chunks(NAMED) {
            let mut own = sql("SELECT hash, bytes FROM chunks
                 WHERE stored = 1 AND course = ?
                 AND (owner = ? AND owner <> '' OR owner = '' AND course <> '')")
            .bind(&account.course)
            .bind(&account.owner);
            own.push(" AND hash IN ").push_list(batch);
            for row in self.0.fetch(own).await? {
                held.insert(hash(&row)?, count(row.get("bytes")?)?);
            }
            let others = batch.iter().filter(|hash| !held.contains_key(hash));
            let others: Vec<&ChunkHash> = others.collect();
            if others.is_empty() {
                continue;
            }
            let mut common = sql(
                "SELECT hash, MAX(bytes) AS bytes FROM chunks WHERE stored = 1 AND owner <> '' AND course = ?",
            )
            .bind(&account.course);
            common.push(" AND hash IN ").push_list(others);
            common
                .push(" GROUP BY hash HAVING COUNT(*) >= ")
                .push_bind(COMMON_FROM);
            for row in self.0.fetch(common).await? {
                held.insert(hash(&row)?, count(row.get("bytes")?)?);
            }
        }
        Ok(held)
    }

    /// Records that the account holds these chunks and needs them now: a sweep keeps them for another term.
    pub async fn hold(
        self,
        account: &Account,
        chunks: &[(ChunkHash, u64)],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0
            .write_each(chunks, |chunk| hold(account, *chunk, now_ms))
            .await
    }

    /// Chunks with those holders that have not touched them since this time, and whose jobs and
    /// states do not name them.
    pub async fn stale(
        self,
        touched_before_ms: i64,
        live: &Live,
    ) -> Result<Vec<(ChunkHash, Vec<Account>)>, StoreError> {
        // Sorted here, because SQLite would read every row to return them in the order of hashes.
        let old =
            sql("SELECT hash, owner, course FROM chunks WHERE touched_ms < ? AND of_states = 0")
                .bind(touched_before_ms);
        let holder = |row: &Row| Ok((hash(row)?, account(row)?));
        let mut old: Vec<(ChunkHash, Account)> = self.0.list(old, holder).await?;
        old.retain(|(hash, holder)| !live.get(holder).is_some_and(|live| live.contains(hash)));
        old.sort_unstable();
        let mut stale: Vec<(ChunkHash, Vec<Account>)> = Vec::new();
        for (hash, holder) in old {
            match stale.last_mut() {
                Some((last, holders)) if *last == hash => holders.push(holder),
                _ => stale.push((hash, vec![holder])),
            }
        }
        Ok(stale)
    }

    /// Deletes the rows of those holders that have not touched their chunk in the meantime, and the
    /// chunks that have no holder left. `remove_file` runs while the writer is held.
    pub async fn delete(
        self,
        stale: &[(ChunkHash, Vec<Account>)],
        touched_before_ms: i64,
        remove_file: &(dyn Fn(ChunkHash) -> bool + Sync),
    ) -> Result<usize, StoreError> {
        let mut deleted = 0;
        for batch in stale.chunks(DELETE_BATCH) {
            let mut writer = self.0.writer().await?;
            let mut forgotten = Vec::new();
            for (hash, holders) in batch {
                let rows =
                    sql("SELECT owner, course, touched_ms, of_states FROM chunks WHERE hash = ?")
                        .bind(hash);
                let rows = writer.fetch(rows).await?;
                let mut going = Vec::new();
                for row in &rows {
                    let holder = account(row)?;
                    if row.get::<i64>("touched_ms")? < touched_before_ms
                        && row.get::<i64>("of_states")? == 0
                        && holders.contains(&holder)
                    {
                        going.push(holder);
                    }
                }
                let last = going.len() == rows.len() && !rows.is_empty();
                if last && !remove_file(*hash) {
                    continue;
                }
                deleted += usize::from(last);
                forgotten.extend(going.iter().map(|holder| {
                    sql("DELETE FROM chunks WHERE hash = ? AND owner = ? AND course = ?")
                        .bind(hash)
                        .bind_account(holder)
                }));
            }
            writer.apply(forgotten).await?;
        }
        Ok(deleted)
    }
}

pub(super) fn hold(account: &Account, (hash, bytes): (ChunkHash, u64), now_ms: i64) -> Statement {
    sql(
        "INSERT INTO chunks (hash, owner, course, bytes, touched_ms) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (hash, owner, course) DO UPDATE SET touched_ms = excluded.touched_ms, stored = 1",
    )
    .bind(&hash)
    .bind_account(account)
    .bind(number(bytes))
    .bind(now_ms)
}

pub(super) fn hash(row: &Row) -> Result<ChunkHash, StoreError> {
    let hash: Vec<u8> = row.get("hash")?;
    let damaged = |_| StoreError::Damaged {
        what: "a chunk's name",
    };
    hash.try_into().map(ChunkHash).map_err(damaged)
}

/// Encodes the names of chunks as one value.
pub(super) fn list(hashes: &[ChunkHash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

/// The reverse of [`list`].
pub(super) fn listed(list: &[u8], what: &'static str) -> Result<Vec<ChunkHash>, StoreError> {
    let (hashes, rest) = list.as_chunks::<32>();
    match rest.is_empty() {
        true => Ok(hashes.iter().copied().map(ChunkHash).collect()),
        false => Err(StoreError::Damaged { what }),
    }
}
