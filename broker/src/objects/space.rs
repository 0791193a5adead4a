//! How much of the object store is used, without a query of the database for every upload.
//!
//! **Invariant:** the number is never below what accounts hold or may upload. What was reserved
//! while the database was queried is added to its answer.

use baton_broker_store::{Store, StoreError};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) struct Space {
    limit_bytes: u64,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    /// At least the sum of all rows.
    counted: u64,
    /// Reservations whose rows may not be written yet.
    reserved: u64,
    /// The sum of all reservations that have ended.
    ended: u64,
}

/// Reserves space for objects until their rows are written.
pub(crate) struct Reservation<'a> {
    space: &'a Space,
    bytes: u64,
}

impl Space {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            used: Mutex::default(),
        }
    }

    /// Counts the rows again. The result may be smaller than before.
    pub(crate) async fn count(&self, store: &Store) -> Result<(), StoreError> {
        let ended_before = self.used().ended;
        let counted = store.objects().bytes().await?;
        let mut used = self.used();
        // The rows of reservations that ended meanwhile may or may not be in the count.
        used.counted = counted + (used.ended - ended_before);
        Ok(())
    }

    /// Returns `None` if there is not enough space.
    pub(crate) async fn reserve(
        &self,
        store: &Store,
        bytes: u64,
    ) -> Result<Option<Reservation<'_>>, StoreError> {
        if let Some(reservation) = self.take(bytes) {
            return Ok(Some(reservation));
        }
        // Objects may have been deleted, or never uploaded.
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
        Some(Reservation { space: self, bytes })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut used = self.space.used();
        used.reserved -= self.bytes;
        used.counted += self.bytes;
        used.ended += self.bytes;
    }
}
