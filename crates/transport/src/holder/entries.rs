//! What a proxy holds for workers on the same machine.

use baton_chunks::Bundle;
use baton_protocol::HeldKey;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Default)]
pub(super) struct Entries {
    by_key: Mutex<HashMap<HeldKey, Entry>>,
}

struct Entry {
    state: Option<Arc<Bundle>>,
    /// The results by key. A worker whose assignment was revoked may deposit one first; the job's
    /// last event says which one counts.
    results: HashMap<HeldKey, Bundle>,
}

impl Entries {
    pub(super) fn insert(&self, key: HeldKey, bundle: Bundle) {
        let entry = Entry {
            state: Some(Arc::new(bundle)),
            results: HashMap::new(),
        };
        self.lock().insert(key, entry);
    }

    pub(super) fn get(&self, key: HeldKey) -> Option<Arc<Bundle>> {
        self.lock().get(&key).and_then(|entry| entry.state.clone())
    }

    pub(super) fn drop_state(&self, key: HeldKey) {
        if let Some(entry) = self.lock().get_mut(&key) {
            entry.state = None;
        }
    }

    /// Returns false if no job waits for the result.
    pub(super) fn put_result(&self, key: HeldKey, result: HeldKey, bundle: Bundle) -> bool {
        match self.lock().get_mut(&key) {
            Some(entry) => {
                entry.results.insert(result, bundle);
                true
            }
            None => false,
        }
    }

    pub(super) fn take_result(&self, key: HeldKey, result: HeldKey) -> Option<Bundle> {
        self.lock().get_mut(&key)?.results.remove(&result)
    }

    pub(super) fn remove(&self, key: HeldKey) {
        self.lock().remove(&key);
    }

    /// A panic cannot poison the lock, because none is possible while it is held.
    fn lock(&self) -> MutexGuard<'_, HashMap<HeldKey, Entry>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
