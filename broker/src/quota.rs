//! How much each person may store, without a query of the database for every cell.
//!
//! **Invariant:** a bound is never below what its person holds. Everything that may be stored is
//! added to it, and nothing is subtracted. If the bound allows a request, the request is accepted
//! at once. If not, the bytes are counted in the database, and that count becomes the new bound.

use baton_broker_store::{Store, StoreError};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub(crate) struct Quotas {
    /// For each person; `None` for no limit.
    pub(crate) limit_bytes: Option<u64>,
    store: Store,
    /// By person.
    bounds: Mutex<HashMap<String, u64>>,
}

/// The request would exceed the person's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) held_bytes: u64,
    pub(crate) limit_bytes: u64,
}

impl Quotas {
    pub(crate) fn new(limit_bytes: Option<u64>, store: Store) -> Self {
        Self {
            limit_bytes,
            store,
            bounds: Mutex::default(),
        }
    }

    /// Reserves bytes before the person stores them.
    pub(crate) async fn take(
        &self,
        person: &str,
        new_bytes: u64,
    ) -> Result<Option<Exceeded>, StoreError> {
        let Some(limit_bytes) = self.limit_bytes else {
            return Ok(None);
        };
        if self.takes_at_once(person, new_bytes, limit_bytes) {
            return Ok(None);
        }
        let held_bytes = self.store.accounts().held_bytes(person).await?;
        if held_bytes + new_bytes > limit_bytes {
            return Ok(Some(Exceeded {
                held_bytes,
                limit_bytes,
            }));
        }
        // Other requests have reserved bytes meanwhile, which may not be stored yet.
        let mut bounds = self.bounds();
        let bound = bounds.entry(person.to_owned()).or_default();
        *bound = held_bytes.max(*bound) + new_bytes;
        Ok(None)
    }

    /// Counts bytes that the person now holds, whatever the limit.
    pub(crate) fn add(&self, person: &str, bytes: u64) {
        if let Some(bound) = self.bounds().get_mut(person) {
            *bound += bytes;
        }
    }

    /// Returns `false` if the bound does not allow it, and then forgets the bound.
    fn takes_at_once(&self, person: &str, new_bytes: u64, limit_bytes: u64) -> bool {
        let mut bounds = self.bounds();
        let Some(bound) = bounds.get_mut(person) else {
            return false;
        };
        *bound += new_bytes;
        let fits = *bound <= limit_bytes;
        if !fits {
            bounds.remove(person);
        }
        fits
    }

    fn bounds(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use baton_broker_queue::Account;
    use baton_protocol::ChunkHash;

    const LIMIT: u64 = 100_000;

    struct Class {
        store: Store,
        quotas: Quotas,
        _folder: tempfile::TempDir,
    }

    impl Class {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let database = folder.path().join("broker.db").into();
            let store = Store::open(&database).await.unwrap();
            Self {
                quotas: Quotas::new(Some(LIMIT), store.clone()),
                store,
                _folder: folder,
            }
        }

        /// Stores a chunk without asking the quota.
        async fn store(&self, person: &str, content: u8, bytes: u64) {
            let account = Account {
                owner: person.to_owned(),
                ..Account::default()
            };
            let chunks = [(ChunkHash([content; 32]), bytes)];
            self.store
                .chunks()
                .hold(&account, &chunks, 1)
                .await
                .unwrap();
        }

        async fn held_if_too_much(&self, person: &str, bytes: u64) -> Option<u64> {
            let exceeded = self.quotas.take(person, bytes).await.unwrap();
            exceeded.map(|exceeded| exceeded.held_bytes)
        }
    }

    #[tokio::test]
    async fn a_person_stores_up_to_the_limit_and_not_a_byte_more() {
        let class = Class::new().await;
        class.store("ada", 1, 40_000).await;
        assert_eq!(class.held_if_too_much("ada", 60_000).await, None);
        class.store("ada", 2, 60_000).await;
        assert_eq!(class.held_if_too_much("ada", 1).await, Some(100_000));
        assert_eq!(class.held_if_too_much("ben", 100_000).await, None);
    }

    #[tokio::test]
    async fn what_was_counted_too_high_is_counted_again_before_anything_is_refused() {
        let class = Class::new().await;
        // The same 30,000 bytes are stored only once.
        for _ in 0..10 {
            assert_eq!(class.held_if_too_much("ada", 30_000).await, None);
            class.store("ada", 1, 30_000).await;
        }
    }

    #[tokio::test]
    async fn what_is_held_without_a_question_counts() {
        let class = Class::new().await;
        assert_eq!(class.held_if_too_much("ada", 10_000).await, None);
        class.quotas.add("ada", 95_000);
        class.store("ada", 1, 95_000).await;
        assert_eq!(class.held_if_too_much("ada", 10_000).await, Some(95_000));
    }

    /// Each takes a block of the disk and a row of the database.
    #[tokio::test]
    async fn a_chunk_of_a_few_bytes_counts_as_four_kibibytes() {
        let class = Class::new().await;
        for content in 0..10 {
            class.store("ada", content, 3).await;
        }
        class.store("ada", 10, 5000).await;
        let held = class.held_if_too_much("ada", LIMIT).await;
        assert_eq!(held, Some(10 * 4096 + 5000));
    }
}
