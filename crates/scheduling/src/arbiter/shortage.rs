//! GPU memory that is in use although the ledger counts it for no session: contexts, and programs outside
//! Baton.
//!
//! In: how much the driver had left when there was not enough room. Out: how much memory is missing, and for how
//! long that is believed. A shortage is assumed to be over after a while, because the driver does not report when it
//! ends.

use crate::arbiter::Settings;
use std::time::Duration;

/// How long a shortage is believed without being found again.
const OLD: Duration = Duration::from_secs(60);

/// A shortage is over if it was not found again for this many tries.
const TRIES: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Shortage {
    bytes: u64,
    /// `None` if none was ever found.
    found_at: Option<Duration>,
    /// Since when it has been found repeatedly.
    since: Duration,
    /// When sessions were last chosen to leave the GPU.
    pub(crate) released_at: Option<Duration>,
}

impl Shortage {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in that all sessions together can have no more than `usable_bytes`.
    pub(crate) fn find(&mut self, usable_bytes: u64, now: Duration, settings: &Settings) {
        let between_tries = settings.late.max(settings.retry);
        let is_known = |found_at: Duration| now - found_at <= between_tries * TRIES;
        if !self.found_at.is_some_and(is_known) {
            self.since = now;
        }
        self.bytes = settings.memory.usable_bytes.saturating_sub(usable_bytes);
        self.found_at = Some(now);
    }

    /// Assumes that there is room again.
    pub(crate) fn forget(&mut self) {
        self.bytes = 0;
    }

    /// How long it had lasted when it was last found.
    pub(crate) fn lasted(&self) -> Duration {
        let found_at = self.found_at.unwrap_or_default();
        found_at.saturating_sub(self.since)
    }

    /// Memory returns to the driver from now on, with some delay.
    pub(crate) fn begin_anew(&mut self, now: Duration) {
        self.forget();
        self.since = now;
    }

    /// When it is next doubted: soon, while memory that has just left may not have reached the driver yet.
    ///
    /// `is_felt`: whether a session that lacks room does not fit because of it.
    pub(crate) fn doubted_at(
        &self,
        is_felt: impl FnOnce() -> bool,
        settings: &Settings,
    ) -> Option<Duration> {
        if self.bytes == 0 {
            return None;
        }
        let patience = if !is_felt() {
            OLD
        } else if self.lasted() < settings.late {
            settings.retry
        } else {
            settings.late
        };
        Some(self.found_at? + patience)
    }
}
