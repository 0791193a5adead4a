//! Workers of pools that are no longer configured. Nothing starts or watches their jobs any more.
//!
//! In: the pools of the settings. Out: the ends of other workers that are not connected, in the store.
//! Their tokens become invalid, so a job that was still waiting cannot join later.
//!
//! **Invariant:** a worker that is connected, or was a short time ago, keeps its token.

use crate::clock::unix_ms;
use baton_broker_store::{Store, StoreError};
use std::{collections::HashSet, convert::Infallible, time::Duration};

const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long such a worker may be disconnected before it counts as gone.
const GONE_AFTER: Duration = Duration::from_secs(30 * 60);

/// Runs until it is dropped.
pub(super) async fn run(configured: HashSet<String>, store: &Store) -> Infallible {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        if let Err(error) = end_absent(&configured, store).await {
            tracing::error!("Failed to end workers of pools that are not configured: {error}");
        }
    }
}

async fn end_absent(configured: &HashSet<String>, store: &Store) -> Result<(), StoreError> {
    let gone_after_ms = i64::try_from(GONE_AFTER.as_millis()).unwrap_or(i64::MAX);
    let absent = store.pools().absent(unix_ms() - gone_after_ms).await?;
    for mut row in absent {
        if configured.contains(&row.pool) {
            continue;
        }
        tracing::warn!(
            "The token of {} is no longer valid, because pool {} is not configured",
            row.name,
            row.pool
        );
        row.ended_ms = Some(unix_ms());
        store.pools().keep_worker(&row).await?;
    }
    Ok(())
}
