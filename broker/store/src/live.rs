//! What the sweep must not delete.

use super::{
    Live, PublicFile, Readers, Store, StoreError, columns::account, events, statement::sql,
};
use baton_protocol::{JobEvent, State, decode};
use futures_util::TryStreamExt;

/// The chunks that may still be requested: those of open jobs, of results that their notebooks
/// do not have yet, and of public files. Only one row is in memory at a time: each may have many megabytes.
pub(super) async fn chunks(store: &Store) -> Result<Live, StoreError> {
    let mut live = Live::new();
    let states =
        sql("SELECT owner, course, manifest FROM jobs WHERE closed = 0 AND manifest IS NOT NULL");
    let mut rows = store.rows(Readers::Cells, states);
    while let Some(row) = rows.try_next().await? {
        let state: State = decode(&row.get::<Vec<u8>>("manifest")?)?;
        live.entry(account(&row)?)
            .or_default()
            .extend(state.chunks());
    }
    let ends = sql(
        "SELECT owner, course, body FROM jobs JOIN events ON events.job = jobs.job
         WHERE closed = 0 AND kind IN (?, ?, ?, ?, ?)",
    )
    .bind(events::FINISHED)
    .bind(events::RETURNED)
    .bind(events::SALVAGEABLE)
    .bind(events::DEFERRED_STATE)
    .bind(events::SALVAGED);
    let mut rows = store.rows(Readers::Cells, ends);
    while let Some(row) = rows.try_next().await? {
        let end: JobEvent = decode(&row.get::<Vec<u8>>("body")?)?;
        live.entry(account(&row)?).or_default().extend(end.chunks());
    }
    for file in store.public_files().all().await? {
        let holder = PublicFile::holder(&file.course);
        live.entry(holder).or_default().extend(file.chunks);
    }
    Ok(live)
}
