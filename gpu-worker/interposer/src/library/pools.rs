//! The driver's pools whose memory the interposer does not allocate itself.
//!
//! A plain pool on the device is only a name: its memory is like any other and can move. Host memory, managed
//! memory, and memory that other processes can use are left to the driver.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Where a pool's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residency {
    /// On the GPU; it can move.
    Movable,
    /// On the GPU; it cannot move.
    Fixed,
    /// Not on the GPU.
    Host,
}

pub(super) struct Pools(Mutex<BTreeMap<usize, Residency>>);

impl Pools {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The device's own pools are movable. They are not listed, because no program creates them.
    pub(super) fn residency_of(&self, pool: usize) -> Residency {
        self.residencies()
            .get(&pool)
            .copied()
            .unwrap_or(Residency::Movable)
    }

    pub(super) fn insert(&self, pool: usize, residency: Residency) {
        self.residencies().insert(pool, residency);
    }

    pub(super) fn remove(&self, pool: usize) {
        self.residencies().remove(&pool);
    }

    fn residencies(&self) -> MutexGuard<'_, BTreeMap<usize, Residency>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
