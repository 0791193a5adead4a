//! One worker of a pool, from its request to its end.

use super::command::JobState;
use crate::words;
use baton_broker_queue::pools::SeenWorker;
use baton_broker_store::PoolWorkerRow;
use baton_protocol::api::{PoolWorker, PoolWorkerState};
use std::time::Duration;
use tokio::time::Instant;

/// Only `row` outlives the broker.
pub(super) struct ManagedWorker {
    pub(super) row: PoolWorkerRow,
    pub(super) state: JobState,
    pub(super) checked: Option<Instant>,
    /// Since when the worker has been missing: its job runs, but it is not connected.
    pub(super) missing_since: Option<Instant>,
    /// It was connected and has been missing for so long that another worker may replace it.
    lost: bool,
    failing: Option<(Instant, String)>,
    /// Whether its failure has been counted for the pool.
    pub(super) failure_counted: bool,
    /// Its job should have ended, but could not be cancelled. That is tried again.
    pub(super) uncancelled: bool,
    /// Its submission failed without an id. Its failure has been counted.
    pub(super) submission_failed: bool,
    pub(super) draining: bool,
    pub(super) connected: bool,
    pub(super) expected_ms: Option<i64>,
}

impl ManagedWorker {
    pub(super) fn new(row: PoolWorkerRow) -> Self {
        Self {
            row,
            state: JobState::Unknown,
            checked: None,
            missing_since: None,
            lost: false,
            failing: None,
            failure_counted: false,
            uncancelled: false,
            submission_failed: false,
            draining: false,
            connected: false,
            expected_ms: None,
        }
    }

    /// Records whether the worker is connected, and how it is. Returns whether its sessions start again.
    pub(super) fn see(&mut self, worker: Option<&SeenWorker>, lost_after: Duration) -> bool {
        self.connected = worker.is_some_and(|worker| worker.is_connected);
        self.lost = self.row.connected_ms.is_some() && !self.connected && self.is_late(lost_after);
        let Some(worker) = worker else { return false };
        if self.connected {
            self.missing_since = None;
            // Its job is not checked while it is connected.
            self.state = JobState::Running;
            self.expected_ms = None;
            self.draining = worker.draining;
        }
        let before = self.failing.take();
        let was_failing = before.is_some();
        let since = before.map_or_else(Instant::now, |(since, _)| since);
        self.failing = worker.failing.clone().map(|why| (since, why));
        if self.connected && self.failing.is_none() {
            self.uncancelled = false;
        }
        was_failing && self.failing.is_none()
    }

    /// Records when the worker first connected. Returns how long its start took, if this is the first time.
    pub(super) fn comes(&mut self, at_ms: i64) -> Option<u64> {
        if self.row.connected_ms.is_some() {
            return None;
        }
        self.row.connected_ms = Some(at_ms);
        let took_ms = (at_ms - self.row.submitted_ms).max(0).unsigned_abs();
        tracing::info!(
            "{} of pool {} connected after {}",
            self.row.name,
            self.row.pool,
            words::span(took_ms)
        );
        Some(took_ms)
    }

    /// Counts its failure for the pool if it has failed to start sessions for too long. Returns why.
    pub(super) fn count_failure(&mut self, limit: Duration) -> Option<String> {
        let (since, why) = self.failing.as_ref()?;
        let counts =
            since.elapsed() >= limit && self.connected && !self.draining && !self.failure_counted;
        self.failure_counted |= counts;
        counts.then(|| format!("Sessions cannot start there: {why}"))
    }

    /// Why its sessions do not start.
    pub(super) fn failing(&self) -> Option<String> {
        self.failing.as_ref().map(|(_, why)| why.clone())
    }

    /// A connected worker needs no check of its job, unless it is to end.
    pub(super) fn needs_check(&self) -> bool {
        !self.connected || self.uncancelled
    }

    /// Whether its job is to be checked, and was last checked at least this long ago.
    pub(super) fn is_due(&self, every: Duration) -> bool {
        self.needs_check() && self.checked.is_none_or(|at| at.elapsed() >= every)
    }

    /// The batch system says what its job does. Until then the job may have waited, which is no time of its own.
    pub(super) fn learn(&mut self, state: JobState) {
        if self.state == JobState::Unknown && self.is_pending() {
            self.missing_since = None;
        }
        self.state = state;
    }

    /// Whether it has been missing for at least this time.
    pub(super) fn is_late(&mut self, limit: Duration) -> bool {
        let since = *self.missing_since.get_or_insert_with(Instant::now);
        since.elapsed() >= limit
    }

    /// Whether the batch system has not said for this time what its job does, and it has never connected.
    /// A job that waits is not late, and one without an id may still be found.
    pub(super) fn is_late_without_answer(&mut self, limit: Duration) -> bool {
        let is_unknown = self.state == JobState::Unknown && self.row.job.is_some();
        is_unknown && self.is_pending() && self.is_late(limit)
    }

    /// Whether it has never connected, and still may. A job that the batch system restarts does not count: earlier
    /// starts do not show how long a restart takes.
    pub(super) fn is_pending(&self) -> bool {
        self.row.connected_ms.is_none() && !self.uncancelled
    }

    /// Whether it takes no more cells but still occupies its machine.
    pub(super) fn is_leaving(&self) -> bool {
        self.uncancelled || self.connected && (self.draining || self.failure_counted)
    }

    /// Whether it can take cells, or has been missing only for a short time.
    pub(super) fn is_up(&self) -> bool {
        let is_missed = self.row.connected_ms.is_some() && self.state != JobState::Pending;
        !self.draining && !self.uncancelled && (self.connected || is_missed && !self.lost)
    }

    pub(super) fn shown(&self) -> PoolWorker {
        PoolWorker {
            name: self.row.name.clone(),
            job: self.row.job.clone(),
            state: self.shown_state(),
            submitted_ms: self.row.submitted_ms,
            expected_ms: self.expected_ms,
        }
    }

    fn shown_state(&self) -> PoolWorkerState {
        match self.state {
            _ if self.draining || self.uncancelled => PoolWorkerState::Leaving,
            _ if self.connected => PoolWorkerState::Connected,
            JobState::Pending => PoolWorkerState::Queued,
            _ if self.row.connected_ms.is_some() => PoolWorkerState::Disconnected,
            _ => PoolWorkerState::Starting,
        }
    }
}
