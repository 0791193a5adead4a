//! How much of the object store is used, without a question to the database for every upload.
//!
//! **Invariant:** it is never thought to be less than what somebody holds or may upload. A number from the database
//! counts together with what was reserved while the database was asked.

use baton_broker_store::{Store, StoreError};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) struct Room {
    limit_bytes: u64,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    /// By the rows, at least.
    counted: u64,
    /// Whose rows may not be written yet.
    reserved: u64,
    /// Of all reservations that have ended.
    ended: u64,
}

/// Room for objects until their rows are written.
pub(crate) struct Reservation<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Room {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            used: Mutex::default(),
        }
    }

    /// What the rows say, which may be less than before.
    pub(crate) async fn count(&self, store: &Store) -> Result<(), StoreError> {
        let ended_before = self.used().ended;
        let counted = store.bytes_of_objects().await?;
        let mut used = self.used();
        // Their rows may have been written before or after the question.
        used.counted = counted + (used.ended - ended_before);
        Ok(())
    }

    /// `None`: so much does not fit.
    pub(crate) async fn reserve(
        &self,
        store: &Store,
        bytes: u64,
    ) -> Result<Option<Reservation<'_>>, StoreError> {
        if let Some(reservation) = self.take(bytes) {
            return Ok(Some(reservation));
        }
        // Some of it may have been deleted, or never have been uploaded.
        self.count(store).await?;
        Ok(self.take(bytes))
    }

    fn take(&self, bytes: u64) -> Option<Reservation<'_>> {
        let mut used = self.used();
        let sum = used
            .counted
            .saturating_add(used.reserved)
            .saturating_add(bytes);
        if sum > self.limit_bytes {
            return None;
        }
        used.reserved += bytes;
        Some(Reservation { room: self, bytes })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut used = self.room.used();
        used.reserved -= self.bytes;
        used.counted += self.bytes;
        used.ended += self.bytes;
    }
}
