//! Workers of pools that are no longer configured. Nothing starts or watches their jobs any more.
//!
//! In: the pools of the settings. Out: the ends of other workers that are not connected, in the store.
//! Their tokens become invalid and the files of these are deleted, so a job that was still waiting cannot join later.
//!
//! **Invariant:** a worker that is connected, or was a short time ago, keeps its token.

use super::{pool_loop::Common, tokens};
use crate::clock::unix_ms;
use baton_broker_store::{Store, StoreError};
use std::{collections::HashSet, convert::Infallible, path::Path, time::Duration};

const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long such a worker may be disconnected before it counts as gone.
const GONE_AFTER: Duration = Duration::from_secs(30 * 60);

/// Runs until it is dropped.
pub(super) async fn run(configured: HashSet<String>, common: &Common) -> Infallible {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        if let Err(error) = end_absent(&configured, &common.store, &common.token_folder).await {
            tracing::error!("Failed to end workers of pools that are not configured: {error}");
        }
    }
}

async fn end_absent(
    configured: &HashSet<String>,
    store: &Store,
    token_folder: &Path,
) -> Result<(), StoreError> {
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
        if let Err(error) = tokens::remove(token_folder, &row.name).await {
            tracing::warn!("Failed to delete the file of this token: {error}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use baton_broker_store::PoolWorkerRow;

    #[tokio::test]
    async fn the_token_of_a_worker_of_a_removed_pool_ends_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("broker.db").into();
        let store = Store::open(&database).await.unwrap();
        let mut left = Vec::new();
        for pool in ["removed", "configured"] {
            let (file, token_hash) = tokens::create(folder.path(), pool).await.unwrap();
            let row = PoolWorkerRow {
                name: pool.to_owned(),
                pool: pool.to_owned(),
                token_hash: token_hash.clone(),
                kept: false,
                job: None,
                submitted_ms: 1,
                connected_ms: None,
                ended_ms: None,
            };
            store.pools().keep_worker(&row).await.unwrap();
            left.push((file, token_hash));
        }
        let configured = HashSet::from(["configured".to_owned()]);
        end_absent(&configured, &store, folder.path())
            .await
            .unwrap();
        for ((file, token_hash), is_valid) in left.iter().zip([false, true]) {
            let named = store.pools().worker_with_token(token_hash).await.unwrap();
            assert_eq!(named.is_some(), is_valid);
            assert_eq!(file.exists(), is_valid);
        }
    }
}
