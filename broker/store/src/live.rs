//! What the sweep must not delete.

use super::{Live, PublicFile, Store, StoreError, columns::account, events, statement::sql};
use baton_protocol::{JobEvent, State, decode};

/// The chunks that may still be requested: those of open jobs, of results that their notebooks
/// do not have yet, and of public files.
pub(super) async fn chunks(store: &Store) -> Result<Live, StoreError> {
    let mut live = Live::new();
    let states =
        sql("SELECT owner, course, manifest FROM jobs WHERE closed = 0 AND manifest IS NOT NULL");
    for row in store.fetch(states).await? {
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
    for row in store.fetch(ends).await? {
        let end: JobEvent = decode(&row.get::<Vec<u8>>("body")?)?;
        live.entry(account(&row)?).or_default().extend(end.chunks());
    }
    for file in store.public_files().all().await? {
        let holder = PublicFile::holder(&file.course);
        live.entry(holder).or_default().extend(file.chunks);
    }
    Ok(live)
}
