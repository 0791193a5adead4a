//! The exit of the process: the agent stops before the driver ends.
//!
//! Otherwise a request of the worker could reach a driver that is shutting down, and its error would look like a
//! fault of the session.

use super::{Process, RETRY};
use std::{
    sync::{MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long the exit waits for what the agent is doing.
const LAST_WORK: Duration = Duration::from_secs(5);

impl Process {
    /// The process exits. From now on the agent does not use the driver.
    pub(super) fn end(&self) {
        if !self.gate.is_in_use() {
            return;
        }
        let since = Instant::now();
        loop {
            match self.driver.try_lock() {
                Ok(driver) => {
                    std::mem::forget(driver);
                    break;
                }
                Err(_) if since.elapsed() < LAST_WORK => thread::sleep(RETRY),
                Err(_) => break,
            }
        }
        self.connection.hang_up();
        self.gate.give_up();
    }

    /// The agent must hold this while it uses the driver. Waits for ever if the process exits.
    pub(super) fn driver(&self) -> MutexGuard<'_, ()> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
