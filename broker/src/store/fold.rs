//! Folds the write-ahead log into the database file, beside the writer, so that no cell waits for the disk.

use super::{Store, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// So many transactions make it worth while; a few megabytes of log.
const TRANSACTIONS: u64 = 1024;

/// What the log has grown by since it was folded.
#[derive(Default)]
pub(super) struct Growth {
    transactions: AtomicU64,
    enough: Notify,
}

impl Growth {
    pub(super) fn add(&self) {
        if self.transactions.fetch_add(1, Ordering::Relaxed) + 1 >= TRANSACTIONS {
            self.enough.notify_one();
        }
    }
}

impl Store {
    /// Runs until it is dropped. Not needed for safety: a log that nobody folds is folded by the writer in the end.
    pub(crate) async fn keep_log_short(&self) {
        loop {
            self.growth.enough.notified().await;
            self.growth.transactions.store(0, Ordering::Relaxed);
            if let Err(error) = self.fold().await {
                tracing::warn!("The database's log could not be folded: {error}");
            }
        }
    }

    /// Waits for no reader and holds up no writer.
    async fn fold(&self) -> Result<(), StoreError> {
        let mut folder = self.folder.lock().await;
        sqlx::query("PRAGMA wal_checkpoint(PASSIVE)")
            .execute(&mut *folder)
            .await?;
        Ok(())
    }
}
