//! The driver's pools: which of them the interposer allocates from itself, and how much.
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

/// What the interposer has allocated from a pool, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) now: u64,
    /// The most since the program last reset this number.
    pub(super) most: u64,
}

pub(super) struct Pools(Mutex<Known>);

struct Known {
    residencies: BTreeMap<usize, Residency>,
    used: BTreeMap<usize, Used>,
    /// The pool and size of each allocation, by its address.
    allocations: BTreeMap<u64, (usize, u64)>,
}

impl Pools {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Known {
            residencies: BTreeMap::new(),
            used: BTreeMap::new(),
            allocations: BTreeMap::new(),
        }))
    }

    /// The device's own pools are movable. They are not listed, because no program creates them.
    pub(super) fn residency_of(&self, pool: usize) -> Residency {
        let known = self.known();
        known
            .residencies
            .get(&pool)
            .copied()
            .unwrap_or(Residency::Movable)
    }

    pub(super) fn insert(&self, pool: usize, residency: Residency) {
        self.known().residencies.insert(pool, residency);
    }

    /// The program has destroyed the pool. What it allocated there stays allocated.
    pub(super) fn remove(&self, pool: usize) {
        let mut known = self.known();
        known.residencies.remove(&pool);
        known.used.remove(&pool);
        known.allocations.retain(|_, (its, _)| *its != pool);
    }

    pub(super) fn used(&self, pool: usize) -> Used {
        self.known().used.get(&pool).copied().unwrap_or_default()
    }

    pub(super) fn reset_most(&self, pool: usize) {
        if let Some(used) = self.known().used.get_mut(&pool) {
            used.most = used.now;
        }
    }

    pub(super) fn allocated(&self, pool: usize, address: u64, bytes: u64) {
        let mut known = self.known();
        known.allocations.insert(address, (pool, bytes));
        let used = known.used.entry(pool).or_default();
        used.now += bytes;
        used.most = used.most.max(used.now);
    }

    /// The memory at this address may have come from a pool.
    pub(super) fn freed(&self, address: u64) {
        self.known().free(address);
    }

    /// Keeps account only of allocations that are still there.
    pub(super) fn retain(&self, is_there: impl Fn(u64) -> bool) {
        let mut known = self.known();
        let addresses = known.allocations.keys().copied();
        let gone: Vec<u64> = addresses.filter(|address| !is_there(*address)).collect();
        gone.into_iter().for_each(|address| known.free(address));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn free(&mut self, address: u64) {
        if let Some((pool, bytes)) = self.allocations.remove(&address)
            && let Some(used) = self.used.get_mut(&pool)
        {
            used.now -= bytes;
        }
    }
}
