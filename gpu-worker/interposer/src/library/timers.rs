//! Which events can measure time.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Their handles.
pub(super) struct Timers(Mutex<BTreeSet<usize>>);

impl Timers {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    pub(super) fn add(&self, event: usize) {
        self.events().insert(event);
    }

    /// The driver may use the handle again.
    pub(super) fn remove(&self, event: usize) {
        self.events().remove(&event);
    }

    pub(super) fn has(&self, event: usize) -> bool {
        self.events().contains(&event)
    }

    fn events(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
