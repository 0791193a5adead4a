//! Who holds which object in the object store.
//!
//! A row is written before its holder may upload the object. From then on it counts for the
//! holder's quota, but it gives access only after the broker has seen the object.
//!
//! **Invariant:** a key is never used again after its last row is deleted. So a late deletion of an
//! object cannot delete a newer one.

use super::{
    Store, StoreError,
    chunks::{NAMED, hash},
    columns::{account, count, number},
    row::Row,
    statement::sql,
};
use baton_broker_queue::Account;
use baton_protocol::{ChunkHash, LEAST_COUNTED_BYTES};
use std::collections::{HashMap, HashSet};

/// Chunks whose rows are deleted in one transaction.
const DELETE_BATCH: usize = 64;

/// An object's key in the store, and what it should contain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRow {
    pub hash: ChunkHash,
    pub object: String,
    pub bytes: u64,
}

/// A handle of the store for objects.
#[derive(Clone, Copy)]
pub struct Objects<'store>(pub(super) &'store Store);

impl Objects<'_> {
    /// Those of the chunks that this account may name and read: its own, and those that are public
    /// in its course.
    pub async fn held(
        self,
        account: &Account,
        hashes: &[ChunkHash],
    ) -> Result<HashMap<ChunkHash, ObjectRow>, StoreError> {
        let mut held = HashMap::with_capacity(hashes.len());
        for batch in hashes.chunks(NAMED) {
            let mut rows = sql(
                "SELECT hash, bytes, object FROM chunks WHERE stored = 1 AND object IS NOT NULL
                 AND course = ? AND (owner = ? AND owner <> '' OR owner = '' AND course <> '')",
            )
            .bind(&account.course)
            .bind(&account.owner);
            rows.push(" AND hash IN ").push_list(batch);
            // The account's own row comes last and replaces the course's.
            rows.push(" ORDER BY owner");
            for row in self.0.fetch(rows).await? {
                held.insert(hash(&row)?, object(&row)?);
            }
        }
        Ok(held)
    }

    /// The account's own objects, each with whether the broker has seen it.
    pub async fn own(
        self,
        account: &Account,
        hashes: &[ChunkHash],
    ) -> Result<HashMap<ChunkHash, (ObjectRow, bool)>, StoreError> {
        let mut own = HashMap::with_capacity(hashes.len());
        for batch in hashes.chunks(NAMED) {
            let mut rows = sql("SELECT hash, bytes, object, stored FROM chunks
                 WHERE object IS NOT NULL AND owner = ? AND course = ?")
            .bind_account(account);
            rows.push(" AND hash IN ").push_list(batch);
            for row in self.0.fetch(rows).await? {
                let is_stored = row.get::<i64>("stored")? == 1;
                own.insert(hash(&row)?, (object(&row)?, is_stored));
            }
        }
        Ok(own)
    }

    /// Records that the account may upload these. A row that already exists keeps its key and length.
    pub async fn allow_upload(
        self,
        account: &Account,
        objects: &[ObjectRow],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.write_each(objects, |new| {
                sql(
                    "INSERT INTO chunks (hash, owner, course, bytes, touched_ms, object, stored) VALUES (?, ?, ?, ?, ?, ?, 0)
                     ON CONFLICT (hash, owner, course) DO UPDATE SET
                     touched_ms = excluded.touched_ms,
                     stored = CASE WHEN chunks.object IS NULL THEN 0 ELSE chunks.stored END,
                     object = CASE WHEN chunks.object IS NULL THEN excluded.object ELSE chunks.object END,
                     bytes = CASE WHEN chunks.object IS NULL THEN excluded.bytes ELSE chunks.bytes END",
                )
                .bind(&new.hash)
                .bind_account(account)
                .bind(number(new.bytes))
                .bind(now_ms)
                .bind(&new.object)
        })
        .await
    }

    /// How many objects this person may upload that the broker has not seen.
    pub async fn pending_of(self, owner: &str) -> Result<u64, StoreError> {
        let pending = sql(
            "SELECT COUNT(*) AS total FROM chunks WHERE stored = 0 AND owner = ?
             AND object IS NOT NULL",
        )
        .bind(owner);
        self.0.total(pending).await
    }

    /// All objects that may be uploaded and that the broker has not seen, with their owners.
    pub async fn pending(self) -> Result<Vec<(ObjectRow, String)>, StoreError> {
        let pending = sql(
            "SELECT hash, bytes, object, owner FROM chunks WHERE stored = 0
             AND object IS NOT NULL",
        );
        let pending_of = |row: &Row| Ok((object(row)?, row.get("owner")?));
        self.0.list(pending, pending_of).await
    }

    /// Records that the broker has seen these objects.
    pub async fn confirm(
        self,
        account: &Account,
        objects: &[ObjectRow],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0
            .write_each(objects, |seen| {
                sql("UPDATE chunks SET stored = 1, touched_ms = ?
                     WHERE hash = ? AND owner = ? AND course = ? AND object = ?")
                .bind(now_ms)
                .bind(&seen.hash)
                .bind_account(account)
                .bind(&seen.object)
            })
            .await
    }

    /// Records that `to` also holds these objects of `from` and needs them now: a sweep keeps them
    /// for another term. An object that `to` may upload itself is unchanged, because a grant for it
    /// may still be valid.
    pub async fn share(
        self,
        from: &Account,
        to: &Account,
        hashes: &[ChunkHash],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.write_each(hashes, |hash| {
                sql(
                    "INSERT INTO chunks (hash, owner, course, bytes, touched_ms, object, stored)
                     SELECT hash, ?, ?, bytes, ?, object, 1 FROM chunks
                     WHERE hash = ? AND owner = ? AND course = ? AND stored = 1 AND object IS NOT NULL
                     ON CONFLICT (hash, owner, course) DO UPDATE SET
                     touched_ms = excluded.touched_ms, stored = 1,
                     bytes = CASE WHEN chunks.object IS NULL THEN excluded.bytes ELSE chunks.bytes END,
                     object = CASE WHEN chunks.object IS NULL THEN excluded.object ELSE chunks.object END
                     WHERE chunks.object IS NULL OR chunks.stored = 1",
                )
                .bind_account(to)
                .bind(now_ms)
                .bind(hash)
                .bind_account(from)
        })
        .await
    }

    /// The object is missing or has other contents. If only one person held it, that person may
    /// upload it again under the same key, because a grant for it may still be valid. Otherwise all
    /// its holders lose it. Rows of chunks that saved states name remain, so that the sweep keeps
    /// such a chunk after it is uploaded again.
    pub async fn mark_missing(self, gone: &ObjectRow) -> Result<(), StoreError> {
        let of = |statement: &'static str| sql(statement).bind(&gone.hash).bind(&gone.object);
        let pending = of(
            "UPDATE chunks SET stored = 0 WHERE hash = ? AND object = ? AND owner <> ''
             AND (SELECT COUNT(*) FROM chunks AS held WHERE held.hash = ? AND held.object = ?) = 1",
        )
        .bind(&gone.hash)
        .bind(&gone.object);
        let forgotten =
            of("DELETE FROM chunks WHERE hash = ? AND object = ? AND stored = 1 AND of_states = 0");
        let lost = of(
            "UPDATE chunks SET object = NULL, stored = 0 WHERE hash = ? AND object = ? AND stored = 1",
        );
        let statements = vec![pending, forgotten, lost];
        self.0.writer().await?.apply(statements).await
    }

    /// Deletes the rows of those holders that have not touched their chunk in the meantime. Returns
    /// the objects without a holder, which the caller must now delete.
    pub async fn forget(
        self,
        stale: &[(ChunkHash, Vec<Account>)],
        touched_before_ms: i64,
    ) -> Result<Vec<ObjectRow>, StoreError> {
        let mut unheld = Vec::new();
        for batch in stale.chunks(DELETE_BATCH) {
            let mut writer = self.0.writer().await?;
            let mut forgotten = Vec::new();
            let mut left_over = Vec::new();
            for (hash, holders) in batch {
                let rows =
                    sql("SELECT hash, bytes, object, owner, course, touched_ms, of_states FROM chunks WHERE hash = ?")
                        .bind(hash);
                let (mut going, mut staying) = (HashSet::new(), HashSet::new());
                for row in writer.fetch(rows).await? {
                    let holder = account(&row)?;
                    let is_object = row.get::<Option<String>>("object")?.is_some();
                    let object = is_object.then(|| object(&row)).transpose()?;
                    let is_stale = row.get::<i64>("touched_ms")? < touched_before_ms
                        && row.get::<i64>("of_states")? == 0;
                    if !(is_stale && holders.contains(&holder)) {
                        staying.extend(object);
                        continue;
                    }
                    going.extend(object);
                    forgotten.push(
                        sql("DELETE FROM chunks WHERE hash = ? AND owner = ? AND course = ?")
                            .bind(hash)
                            .bind_account(&holder),
                    );
                }
                left_over.extend(going.difference(&staying).cloned());
            }
            writer.apply(forgotten).await?;
            unheld.extend(left_over);
        }
        Ok(unheld)
    }

    /// All objects of these chunks that an account holds or may upload.
    pub async fn of_chunks(self, hashes: &[ChunkHash]) -> Result<HashSet<ObjectRow>, StoreError> {
        let mut known = HashSet::new();
        for batch in hashes.chunks(NAMED) {
            let mut rows =
                sql("SELECT DISTINCT hash, bytes, object FROM chunks WHERE object IS NOT NULL");
            rows.push(" AND hash IN ").push_list(batch);
            for row in self.0.fetch(rows).await? {
                known.insert(object(&row)?);
            }
        }
        Ok(known)
    }

    /// What all objects that an account holds or may upload count together.
    pub async fn bytes(self) -> Result<u64, StoreError> {
        let sum = sql(
            "SELECT CAST(COALESCE(SUM(CASE WHEN bytes < ? THEN ? ELSE bytes END), 0) AS BIGINT) AS total FROM
             (SELECT DISTINCT hash, object, bytes FROM chunks WHERE object IS NOT NULL) AS objects",
        );
        let least = number(LEAST_COUNTED_BYTES);
        self.0.total(sum.bind(least).bind(least)).await
    }
}

fn object(row: &Row) -> Result<ObjectRow, StoreError> {
    Ok(ObjectRow {
        hash: hash(row)?,
        object: row.get("object")?,
        bytes: count(row.get("bytes")?)?,
    })
}
