//! Saved states: variables of a notebook that a person keeps under a name, stored as a list of chunks.
//!
//! **Invariant:** a state is stored only after its person holds its chunks and has touched them.
//! The sweep keeps the chunks of states, so it cannot have deleted any of them. Each row of a chunk
//! counts the states of its holder that name the chunk. This count changes in the same transaction
//! as the states, so the sweep need not read them.

use super::{
    Store, StoreError, Writer,
    chunks::{NAMED, list, listed},
    columns::{count, number},
    row::Row,
    statement::{Statement, sql},
};
use baton_broker_queue::Account;
use baton_protocol::{ChunkHash, api::SavedState as Entry};
use std::collections::BTreeSet;

/// One state, with everything that is stored about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRow {
    pub entry: Entry,
    pub body: Vec<u8>,
    pub chunks: Vec<ChunkHash>,
}

/// A handle of the store for saved states.
#[derive(Clone, Copy)]
pub struct States<'store>(pub(super) &'store Store);

impl States<'_> {
    /// The states of this account, by name.
    pub async fn of(self, account: &Account) -> Result<Vec<Entry>, StoreError> {
        let states = sql(
            "SELECT name, notebook, saved_ms, bytes, variables FROM states
             WHERE owner = ? AND course = ? ORDER BY name",
        )
        .bind_account(account);
        self.0.list(states, entry).await
    }

    /// The encoded state with this name.
    pub async fn body(self, account: &Account, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let state = sql("SELECT body FROM states WHERE owner = ? AND course = ? AND name = ?")
            .bind_account(account)
            .bind(name);
        self.0.first(state, |row| row.get("body")).await
    }

    /// Stores a state on the disk, in place of one with the same name. The account must already hold its chunks.
    pub async fn save(self, account: &Account, state: &StateRow) -> Result<(), StoreError> {
        let entry = &state.entry;
        let insert = sql(
            "INSERT INTO states (owner, course, name, notebook, saved_ms, bytes, variables, body, chunks)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (owner, course, name) DO UPDATE SET
             notebook = excluded.notebook, saved_ms = excluded.saved_ms, bytes = excluded.bytes,
             variables = excluded.variables, body = excluded.body, chunks = excluded.chunks",
        )
        .bind_account(account)
        .bind(&entry.name)
        .bind(entry.notebook.clone())
        .bind(entry.saved_ms)
        .bind(number(entry.bytes))
        .bind(number(entry.variables))
        .bind(state.body.as_slice())
        .bind(list(&state.chunks));
        let mut writer = self.0.writer().await?;
        let before = chunks_of(&mut writer, account, &entry.name).await?;
        let mut changes = vec![insert];
        changes.extend(counted(account, before.unwrap_or_default(), -1));
        changes.extend(counted(account, state.chunks.iter().copied().collect(), 1));
        writer.apply_durably(changes).await
    }

    /// Returns whether there was such a state. The sweep deletes its chunks after their term.
    pub async fn delete(self, account: &Account, name: &str) -> Result<bool, StoreError> {
        let mut writer = self.0.writer().await?;
        let Some(chunks) = chunks_of(&mut writer, account, name).await? else {
            return Ok(false);
        };
        let delete = sql("DELETE FROM states WHERE owner = ? AND course = ? AND name = ?")
            .bind_account(account)
            .bind(name);
        let mut changes = vec![delete];
        changes.extend(counted(account, chunks, -1));
        writer.apply(changes).await?;
        Ok(true)
    }
}

/// The distinct chunks of the state with this name; `None` if there is no such state.
async fn chunks_of(
    writer: &mut Writer,
    account: &Account,
    name: &str,
) -> Result<Option<BTreeSet<ChunkHash>>, StoreError> {
    let state = sql("SELECT chunks FROM states WHERE owner = ? AND course = ? AND name = ?")
        .bind_account(account)
        .bind(name);
    let rows = writer.fetch(state).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let chunks = row.get::<Vec<u8>>("chunks")?;
    let chunks = listed(&chunks, "the chunks of a saved state")?;
    Ok(Some(chunks.into_iter().collect()))
}

/// Adds `more` to the number of states of the account that name these chunks.
fn counted(account: &Account, chunks: BTreeSet<ChunkHash>, more: i64) -> Vec<Statement> {
    let chunks: Vec<ChunkHash> = chunks.into_iter().collect();
    let counted = chunks.chunks(NAMED).map(|batch| {
        let mut count =
            sql("UPDATE chunks SET of_states = of_states + ? WHERE owner = ? AND course = ?")
                .bind(more)
                .bind_account(account);
        count.push(" AND hash IN ").push_list(batch);
        count
    });
    counted.collect()
}

fn entry(row: &Row) -> Result<Entry, StoreError> {
    Ok(Entry {
        name: row.get("name")?,
        notebook: row.get("notebook")?,
        saved_ms: row.get("saved_ms")?,
        bytes: count(row.get("bytes")?)?,
        variables: count(row.get("variables")?)?,
    })
}
