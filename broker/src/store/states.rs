//! Saved states: what a person keeps of a notebook's variables under a name, as the chunks that it names.
//!
//! **Invariant:** a state is stored only after its person holds its chunks and has touched them, so the sweep, which
//! leaves the chunks of states, cannot have taken one of them.

use super::{
    Store, StoreError,
    chunks::{Live, list, listed},
    read::{account, count},
    statement::{Row, sql},
    write::number,
};
use crate::people::Account;
use baton_protocol::{ChunkHash, api::SavedState as Entry};

/// One state, with all that is stored of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateRow {
    pub(crate) entry: Entry,
    pub(crate) body: Vec<u8>,
    pub(crate) chunks: Vec<ChunkHash>,
}

impl Store {
    /// By name.
    pub(crate) async fn states(&self, account: &Account) -> Result<Vec<Entry>, StoreError> {
        let states = sql(
            "SELECT name, notebook, saved_ms, bytes, variables FROM states
             WHERE owner = ? AND course = ? ORDER BY name",
        )
        .bind(&account.owner)
        .bind(&account.course);
        self.fetch(states).await?.iter().map(entry).collect()
    }

    /// The encoded state of this name.
    pub(crate) async fn state(
        &self,
        account: &Account,
        name: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let state = sql("SELECT body FROM states WHERE owner = ? AND course = ? AND name = ?")
            .bind(&account.owner)
            .bind(&account.course)
            .bind(name);
        let rows = self.fetch(state).await?;
        rows.first().map(|row| row.get("body")).transpose()
    }

    /// In place of one of the same name. The account holds its chunks already.
    pub(crate) async fn save_state(
        &self,
        account: &Account,
        state: &StateRow,
    ) -> Result<(), StoreError> {
        let entry = &state.entry;
        let insert = sql(
            "INSERT INTO states (owner, course, name, notebook, saved_ms, bytes, variables, body, chunks)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (owner, course, name) DO UPDATE SET
             notebook = excluded.notebook, saved_ms = excluded.saved_ms, bytes = excluded.bytes,
             variables = excluded.variables, body = excluded.body, chunks = excluded.chunks",
        )
        .bind(&account.owner)
        .bind(&account.course)
        .bind(&entry.name)
        .bind(entry.notebook.clone())
        .bind(entry.saved_ms)
        .bind(number(entry.bytes))
        .bind(number(entry.variables))
        .bind(state.body.as_slice())
        .bind(list(&state.chunks));
        self.writer().await?.apply(vec![insert]).await
    }

    /// Whether there was one. The sweep deletes its chunks after their term.
    pub(crate) async fn delete_state(
        &self,
        account: &Account,
        name: &str,
    ) -> Result<bool, StoreError> {
        if self.state(account, name).await?.is_none() {
            return Ok(false);
        }
        let delete = sql("DELETE FROM states WHERE owner = ? AND course = ? AND name = ?")
            .bind(&account.owner)
            .bind(&account.course)
            .bind(name);
        self.writer().await?.apply(vec![delete]).await?;
        Ok(true)
    }

    /// What states name, of all people.
    pub(super) async fn add_chunks_of_states(&self, live: &mut Live) -> Result<(), StoreError> {
        let states = sql("SELECT owner, course, chunks FROM states");
        for row in self.fetch(states).await? {
            let chunks = listed(
                &row.get::<Vec<u8>>("chunks")?,
                "the chunks of a saved state",
            )?;
            live.entry(account(&row)?).or_default().extend(chunks);
        }
        Ok(())
    }
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
