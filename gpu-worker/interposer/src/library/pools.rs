//! Pools of the driver whose memory the interposer does not make itself.
//!
//! A plain pool of the device is only a name: memory from it is like any other and can move. Memory of the host,
//! managed memory, and what can be given to other processes stay the driver's.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Where a pool's memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On the GPU, from where it can move.
    Movable,
    /// On the GPU, where it stays.
    Fixed,
    /// Not on the GPU.
    Host,
}

pub(super) struct Pools(Mutex<BTreeMap<usize, Place>>);

impl Pools {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The device's own pools are movable, and nobody makes them.
    pub(super) fn place_of(&self, pool: usize) -> Place {
        self.places().get(&pool).copied().unwrap_or(Place::Movable)
    }

    pub(super) fn insert(&self, pool: usize, place: Place) {
        self.places().insert(pool, place);
    }

    pub(super) fn remove(&self, pool: usize) {
        self.places().remove(&pool);
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<usize, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
