//! Sign-ins, by the hash of their id.

use super::{Store, StoreError, row::Row, statement::sql};

/// The most sign-ins of one person and kind. The oldest are deleted first.
const MOST_OF_A_PERSON: i64 = 1000;

/// One row. Not `Debug`: some contents are secrets.
#[derive(Clone)]
pub struct SignInRow {
    pub kind: String,
    pub person: String,
    pub content: Vec<u8>,
    pub expires_ms: i64,
}

/// A handle of the store for sign-ins.
#[derive(Clone, Copy)]
pub struct SignIns<'store>(pub(super) &'store Store);

impl SignIns<'_> {
    /// Also deletes expired sign-ins.
    pub async fn keep(self, hash: &[u8], row: &SignInRow, now_ms: i64) -> Result<(), StoreError> {
        let expired = sql("DELETE FROM sign_ins WHERE expires_ms <= ?").bind(now_ms);
        let insert = sql(
            "INSERT INTO sign_ins (hash, kind, person, content, expires_ms) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(hash)
        .bind(&row.kind)
        .bind(&row.person)
        .bind(row.content.clone())
        .bind(row.expires_ms);
        let too_many = sql(
            "DELETE FROM sign_ins WHERE hash IN (SELECT hash FROM sign_ins
             WHERE person = ? AND kind = ? ORDER BY expires_ms DESC LIMIT 1000000000 OFFSET ?)",
        )
        .bind(&row.person)
        .bind(&row.kind)
        .bind(MOST_OF_A_PERSON);
        let writer = self.0.writer().await?;
        writer.apply(vec![expired, insert, too_many]).await
    }

    pub async fn get(self, hash: &[u8]) -> Result<Option<SignInRow>, StoreError> {
        let row = sql("SELECT kind, person, content, expires_ms FROM sign_ins WHERE hash = ?");
        self.0.first(row.bind(hash), sign_in).await
    }

    pub async fn end(self, hash: &[u8]) -> Result<(), StoreError> {
        let delete = sql("DELETE FROM sign_ins WHERE hash = ?").bind(hash);
        self.0.writer().await?.apply(vec![delete]).await
    }
}

fn sign_in(row: &Row) -> Result<SignInRow, StoreError> {
    Ok(SignInRow {
        kind: row.get("kind")?,
        person: row.get("person")?,
        content: row.get("content")?,
        expires_ms: row.get("expires_ms")?,
    })
}
