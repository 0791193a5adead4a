//! The exit of the process: the agent stops before the driver ends.
//!
//! Otherwise a request of the worker could reach a driver that is shutting down, and its error would look like a
//! fault of the session.

use super::RETRY;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long the exit waits for what the agent is doing.
const LAST_WORK: Duration = Duration::from_secs(5);

/// The agent's use of the driver, which is taken away for good when the process exits.
pub(super) struct DriverUse(Mutex<()>);

impl DriverUse {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(()))
    }

    /// The agent must hold this while it uses the driver. Waits for ever if the process exits.
    pub(super) fn begin(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the agent does not use the driver.
    pub(super) fn end(&self) {
        let since = Instant::now();
        loop {
            match self.0.try_lock() {
                Ok(driver) => return std::mem::forget(driver),
                Err(_) if since.elapsed() < LAST_WORK => thread::sleep(RETRY),
                Err(_) => return,
            }
        }
    }
}
