//! A worker whose time on its machine is limited: when it stops accepting jobs, and when its cells must have ended.
//!
//! ```text
//! accepts cells ── drains ──> cells may end ── cells are ended ──> results are sent ──> leaves
//! ```

use baton_scheduling::pools::last_step;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

#[derive(Debug, Clone)]
pub(crate) struct LifeEnd {
    step: Duration,
    cells_end: SystemTime,
    cells_end_at: Instant,
    drains_at: Instant,
}

impl LifeEnd {
    pub(crate) fn new(leaves_at: SystemTime) -> Self {
        let left = leaves_at.duration_since(SystemTime::now());
        let left = left.unwrap_or_default();
        let step = last_step(left);
        Self {
            step,
            cells_end: leaves_at - step,
            cells_end_at: Instant::now() + left - step,
            drains_at: Instant::now() + left - 2 * step,
        }
    }

    /// In milliseconds since 1970.
    pub(crate) fn cells_end_at_ms(&self) -> i64 {
        let since = self.cells_end.duration_since(UNIX_EPOCH);
        since.map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
    }

    /// From then on the worker accepts nothing new.
    pub(crate) fn drains_at(&self) -> Instant {
        self.drains_at
    }

    pub(crate) fn cells_end_at(&self) -> Instant {
        self.cells_end_at
    }

    /// How long running cells may continue after that.
    pub(crate) fn grace(&self) -> Duration {
        self.step
    }

    /// Whether a worker that leaves now does so because its time ends. The signal of a batch system arrives early: a
    /// worker counts its time from its own start, which is later than that of its job.
    pub(crate) fn is_ending(&self) -> bool {
        Instant::now() + 2 * self.step >= self.drains_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_time_is_ending_from_four_minutes_before_its_end() {
        let end = LifeEnd::new(SystemTime::now() + Duration::from_secs(7200));
        tokio::time::advance(Duration::from_secs(7200 - 242)).await;
        assert!(!end.is_ending());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(end.is_ending());
    }
}
