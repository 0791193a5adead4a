//! The locks of environments, by name, so that notebooks can get one even while no worker is connected.

use super::{
    Store, StoreError, Writer,
    row::Row,
    statement::{Statement, sql},
};
use baton_protocol::{Lock, decode, encode};
use std::collections::BTreeMap;

/// The lock of an environment, as a worker sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    pub environment: String,
    pub digest: String,
    pub seen_ms: i64,
}

/// A handle of the store for locks of environments.
#[derive(Clone, Copy)]
pub struct Environments<'store>(pub(super) &'store Store);

impl Environments<'_> {
    /// All locks, sorted by name.
    pub async fn locks(self) -> Result<Vec<LockRow>, StoreError> {
        let locks = sql("SELECT name, digest, seen_ms FROM environments ORDER BY name");
        self.0.list(locks, row).await
    }

    pub async fn lock(self, environment: &str) -> Result<Option<(LockRow, Lock)>, StoreError> {
        let lock = sql("SELECT name, digest, seen_ms, lock_files FROM environments WHERE name = ?");
        let rows = self.0.fetch(lock.bind(environment)).await?;
        let Some(found) = rows.first() else {
            return Ok(None);
        };
        let files: Vec<u8> = found.get("lock_files")?;
        let what = "the lock of an environment";
        let lock = decode(&files).map_err(|_| StoreError::Damaged { what })?;
        Ok(Some((row(found)?, lock)))
    }
}

/// The hash of each environment's lock.
pub(super) async fn digests(writer: &mut Writer) -> Result<BTreeMap<String, String>, StoreError> {
    let rows = writer
        .fetch(sql("SELECT name, digest FROM environments"))
        .await?;
    let digest = |row: &Row| Ok((row.get("name")?, row.get("digest")?));
    rows.iter().map(digest).collect()
}

pub(super) fn keep(environment: &str, digest: &str, lock: &Lock, at_ms: i64) -> Statement {
    sql(
        "INSERT INTO environments (name, digest, lock_files, seen_ms) VALUES (?, ?, ?, ?)
         ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, lock_files = excluded.lock_files,
         seen_ms = excluded.seen_ms",
    )
    .bind(environment)
    .bind(digest)
    .bind(encode(lock))
    .bind(at_ms)
}

fn row(row: &Row) -> Result<LockRow, StoreError> {
    Ok(LockRow {
        environment: row.get("name")?,
        digest: row.get("digest")?,
        seen_ms: row.get("seen_ms")?,
    })
}
