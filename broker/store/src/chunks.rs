//! Who holds which chunk and last named it when. Deletes chunks and the rows of old jobs for the sweep.
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
use baton_protocol::{ChunkHash, NotebookId, WorkerId};
use std::collections::{HashMap, HashSet};

/// Chunks, or jobs, deleted in one transaction. Writes of the queue wait for each.
const DELETE_BATCH: usize = 64;
/// Chunks named in one statement.
pub(super) const NAMED: usize = 256;
/// A chunk that this many people of a course have sent independently belongs to the course.
const COMMON_FROM: i64 = 5;

/// The chunks that each account's jobs name.
pub type Live = HashMap<Account, HashSet<ChunkHash>>;

impl Store {
    /// Returns the sizes of those chunks that this account may name and read: its own, and those
    /// that are public or common in its course.
    pub async fn held_chunks(
        &self,
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
            own.push(" AND hash IN ").push_list(names(batch.iter()));
            for row in self.fetch(own).await? {
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
            common.push(" AND hash IN ").push_list(names(others));
            common
                .push(" GROUP BY hash HAVING COUNT(*) >= ")
                .push_bind(COMMON_FROM);
            for row in self.fetch(common).await? {
                held.insert(hash(&row)?, count(row.get("bytes")?)?);
            }
        }
        Ok(held)
    }

    /// The bytes that a person uses in all courses: in chunks, in open jobs and their events, and in
    /// saved states.
    pub async fn held_bytes(&self, owner: &str) -> Result<u64, StoreError> {
        let sum = sql(
            "SELECT CAST((SELECT COALESCE(SUM(bytes), 0) FROM chunks WHERE owner = ?)
             + (SELECT COALESCE(SUM(LENGTH(cell) + LENGTH(manifest)), 0) FROM jobs WHERE closed = 0 AND owner = ?)
             + (SELECT COALESCE(SUM(LENGTH(body)), 0) FROM jobs JOIN events ON events.job = jobs.job
                WHERE closed = 0 AND owner = ?)
             + (SELECT COALESCE(SUM(LENGTH(body) + LENGTH(chunks)), 0) FROM states WHERE owner = ?)
             AS BIGINT) AS bytes",
        );
        let sum = sum.bind(owner).bind(owner).bind(owner).bind(owner);
        let rows = self.fetch(sum).await?;
        rows.first().map_or(Ok(0), |row| count(row.get("bytes")?))
    }

    /// Records that the account holds these chunks and needs them now: a sweep keeps them for another term.
    pub async fn hold_chunks(
        &self,
        account: &Account,
        chunks: &[(ChunkHash, u64)],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.write_each(chunks, |chunk| hold(account, *chunk, now_ms))
            .await
    }

    /// Writes a statement for each item, in batches, so that others can write in between.
    pub(super) async fn write_each<Item>(
        &self,
        items: &[Item],
        statement: impl Fn(&Item) -> Statement,
    ) -> Result<(), StoreError> {
        for batch in items.chunks(NAMED) {
            let statements = batch.iter().map(&statement).collect();
            self.writer().await?.apply(statements).await?;
        }
        Ok(())
    }

    /// The account of this notebook, if the worker `by` (or any worker, if `None`) has an open job
    /// of it. Once a job is assigned again, its earlier worker no longer serves it.
    pub async fn served(
        &self,
        notebook: NotebookId,
        by: Option<WorkerId>,
    ) -> Result<Option<Account>, StoreError> {
        let mut job = sql("SELECT owner, course FROM jobs WHERE notebook = ? AND closed = 0 AND worker IS NOT NULL")
            .bind(notebook.0.as_bytes().as_slice());
        if let Some(worker) = by {
            job.push(" AND worker = ")
                .push_bind(worker.0.as_bytes().as_slice());
        }
        job.push(" LIMIT 1");
        self.fetch(job).await?.first().map(account).transpose()
    }

    /// Keeps everything that is held for another term, and gives each of these existing files a row.
    pub async fn adopt_chunks(
        &self,
        files: &[(ChunkHash, u64)],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let all = sql("UPDATE chunks SET touched_ms = ?").bind(now_ms);
        self.writer().await?.apply(vec![all]).await?;
        self.hold_chunks(&Account::default(), files, now_ms).await
    }

    /// Chunks with those holders that have not touched them since this time, and whose jobs and
    /// states do not name them.
    pub async fn stale_chunks(
        &self,
        touched_before_ms: i64,
        live: &Live,
    ) -> Result<Vec<(ChunkHash, Vec<Account>)>, StoreError> {
        // Sorted here, because SQLite would read every row to return them in the order of hashes.
        let old =
            sql("SELECT hash, owner, course FROM chunks WHERE touched_ms < ? AND of_states = 0")
                .bind(touched_before_ms);
        let mut old: Vec<(ChunkHash, Account)> = self
            .fetch(old)
            .await?
            .iter()
            .map(|row| Ok((hash(row)?, account(row)?)))
            .collect::<Result<_, StoreError>>()?;
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
    pub async fn delete_chunks(
        &self,
        stale: &[(ChunkHash, Vec<Account>)],
        touched_before_ms: i64,
        remove_file: &(dyn Fn(ChunkHash) -> bool + Sync),
    ) -> Result<usize, StoreError> {
        let mut deleted = 0;
        for batch in stale.chunks(DELETE_BATCH) {
            let mut writer = self.writer().await?;
            let mut forgotten = Vec::new();
            for (hash, holders) in batch {
                let rows =
                    sql("SELECT owner, course, touched_ms, of_states FROM chunks WHERE hash = ?")
                        .bind(hash.0.as_slice());
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
                        .bind(hash.0.as_slice())
                        .bind(&holder.owner)
                        .bind(&holder.course)
                }));
            }
            writer.apply(forgotten).await?;
        }
        Ok(deleted)
    }

    /// Deletes the outputs of closed jobs that ended before this time.
    pub async fn delete_old_outputs(&self, finished_before_ms: i64) -> Result<(), StoreError> {
        let printed = "AND EXISTS (SELECT 1 FROM events WHERE events.job = jobs.job)";
        self.delete_of_old_jobs("events", printed, finished_before_ms)
            .await
    }

    /// Deletes the rows of closed jobs that ended before this time. Their outputs must be deleted already.
    pub async fn delete_old_jobs(&self, finished_before_ms: i64) -> Result<(), StoreError> {
        let workers = sql("DELETE FROM workers WHERE gone_ms < ?").bind(finished_before_ms);
        self.writer().await?.apply(vec![workers]).await?;
        self.delete_of_old_jobs("jobs", "", finished_before_ms)
            .await
    }

    /// Finds the jobs without the writer, and releases the writer between batches.
    async fn delete_of_old_jobs(
        &self,
        table: &str,
        condition: &str,
        finished_before_ms: i64,
    ) -> Result<(), StoreError> {
        // A closed job is always finished; the condition on `state` lets the database use its index.
        let old = sql(format!(
            "SELECT job FROM jobs WHERE state = 'finished' AND closed = 1 AND finished_ms < ? {condition}"
        ));
        let old = self.fetch(old.bind(finished_before_ms)).await?;
        for batch in old.chunks(DELETE_BATCH) {
            let jobs: Vec<Vec<u8>> = batch
                .iter()
                .map(|row| row.get("job"))
                .collect::<Result<_, _>>()?;
            let mut delete = sql(format!("DELETE FROM {table} WHERE job IN "));
            delete.push_list(jobs);
            self.writer().await?.apply(vec![delete]).await?;
        }
        Ok(())
    }
}

pub(super) fn hold(account: &Account, (hash, bytes): (ChunkHash, u64), now_ms: i64) -> Statement {
    sql(
        "INSERT INTO chunks (hash, owner, course, bytes, touched_ms) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (hash, owner, course) DO UPDATE SET touched_ms = excluded.touched_ms, stored = 1",
    )
    .bind(hash.0.as_slice())
    .bind(&account.owner)
    .bind(&account.course)
    .bind(number(bytes))
    .bind(now_ms)
}

pub(super) fn names<'a>(
    hashes: impl IntoIterator<Item = &'a ChunkHash>,
) -> impl Iterator<Item = &'a [u8]> {
    hashes.into_iter().map(|hash| hash.0.as_slice())
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
