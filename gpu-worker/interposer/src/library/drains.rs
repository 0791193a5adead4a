//! Ends of leases that take long because work in flight waits for work that is not submitted yet: behind
//! `cuStreamWaitValue`, or in a host function that waits for a thread at the gate.
//!
//! The gate is opened for a moment, again and again, so that such a thread can submit.
//!
//! **Invariant:** when [`Drains::end`] returns `true`, the gate was not opened since the last call.

use super::gate::Gate;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long the end of a lease may take before the gate is opened.
const PATIENCE: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(2);

pub(super) struct Drains(Mutex<Option<Drain>>);

struct Drain {
    since: Instant,
    is_eased: bool,
}

impl Drains {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(super) fn begin(&self) {
        *self.drain() = Some(Drain {
            since: Instant::now(),
            is_eased: false,
        });
    }

    /// Returns `false` if the gate was opened since the last call, so that there may be new work.
    pub(super) fn end(&self) -> bool {
        let mut drain = self.drain();
        let is_eased = drain.as_mut().map(|drain| &mut drain.is_eased);
        if is_eased.is_some_and(std::mem::take) {
            return false;
        }
        *drain = None;
        true
    }

    /// Opens the gate for a moment if the end of a lease takes long and a thread waits there. Must be called
    /// regularly, by a thread other than the one that ends the lease.
    pub(super) fn ease(&self, gate: &Gate) {
        if let Some(drain) = &mut *self.drain()
            && drain.since.elapsed() >= PATIENCE
            && gate.somebody_waits()
        {
            drain.is_eased = true;
            gate.open();
            thread::sleep(MOMENT);
            gate.close();
        }
    }

    fn drain(&self) -> MutexGuard<'_, Option<Drain>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
