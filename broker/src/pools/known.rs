//! What the runner knows of each pool and of each worker that was asked for.

use super::{PoolSettings, command::JobState};
use crate::words;
use baton_broker_store::{PoolRow, PoolWorkerRow};
use baton_protocol::{
    api::{Pool, PoolWorker, PoolWorkerState},
    proxy::Estimate,
};
use baton_scheduling::{
    pools::{self, Present},
    queue::Offer,
};
use std::time::Duration;
use tokio::time::Instant;

/// One life of a worker, with what need not outlive the broker.
pub(super) struct Life {
    pub(super) row: PoolWorkerRow,
    pub(super) state: JobState,
    pub(super) checked: Option<Instant>,
    /// Since when its job runs without a worker that is connected.
    pub(super) missing_since: Option<Instant>,
    /// It had come, and has been missing for so long that another one may be asked for.
    pub(super) lost: bool,
    pub(super) failing: Option<(Instant, String)>,
    /// Whether that has counted as a failure of its pool.
    pub(super) failure_counted: bool,
    pub(super) draining: bool,
    pub(super) connected: bool,
    pub(super) expected_ms: Option<i64>,
}

pub(super) struct Known {
    pub(super) row: PoolRow,
    pub(super) lives: Vec<Life>,
    /// How long starts took, the last ones.
    pub(super) starts_ms: Vec<u64>,
    pub(super) wanted: u32,
    /// Since when each worker is wanted that something else is to start and that has not joined.
    pub(super) asked_ms: Vec<i64>,
    /// Why nobody may be starting them.
    pub(super) late: Option<String>,
}

/// After so many starts in a row that failed.
pub(super) fn is_paused(row: &PoolRow) -> bool {
    row.failures >= pools::MOST_FAILURES
}

impl Life {
    pub(super) fn new(row: PoolWorkerRow) -> Self {
        Self {
            row,
            state: JobState::Unknown,
            checked: None,
            missing_since: None,
            lost: false,
            failing: None,
            failure_counted: false,
            draining: false,
            connected: false,
            expected_ms: None,
        }
    }

    /// Its worker connected then. Returns how long its start took, the first time.
    pub(super) fn comes(&mut self, settings: &PoolSettings, at_ms: i64) -> Option<u64> {
        if self.row.connected_ms.is_some() {
            return None;
        }
        self.row.connected_ms = Some(at_ms);
        let took_ms = (at_ms - self.row.submitted_ms).max(0).unsigned_abs();
        tracing::info!(
            "{} of pool {} has come after {}",
            self.row.name,
            settings.name,
            words::span(took_ms)
        );
        Some(took_ms)
    }

    /// Whether nothing of it has been seen for that long.
    pub(super) fn is_late(&mut self, limit: Duration) -> bool {
        let since = *self.missing_since.get_or_insert_with(Instant::now);
        since.elapsed() >= limit
    }

    /// One whose job the batch system starts again is not: when it will come is not known by other starts.
    pub(super) fn is_pending(&self) -> bool {
        self.row.connected_ms.is_none()
    }

    /// It takes cells, or has been missing for a moment only.
    pub(super) fn is_up(&self) -> bool {
        let is_missed = self.row.connected_ms.is_some() && self.state != JobState::Pending;
        !self.draining && (self.connected || is_missed && !self.lost)
    }

    pub(super) fn shown_state(&self) -> PoolWorkerState {
        match self.state {
            _ if self.draining => PoolWorkerState::Leaving,
            _ if self.connected => PoolWorkerState::Connected,
            JobState::Pending => PoolWorkerState::Queued,
            _ if self.row.connected_ms.is_some() => PoolWorkerState::Disconnected,
            _ => PoolWorkerState::Starting,
        }
    }
}

impl Known {
    pub(super) fn pending(&self) -> u32 {
        let joining = self.lives.iter().filter(|life| life.is_pending());
        small(joining.count() + self.asked_ms.len())
    }

    /// Connected ones that take no more cells, and whose machines are not free yet.
    fn leaving(&self) -> u32 {
        let leaves = |life: &&Life| life.connected && (life.draining || life.failure_counted);
        small(self.lives.iter().filter(leaves).count())
    }

    /// After how long without a cell its workers leave.
    pub(super) fn idle_ms(&self, settings: &PoolSettings) -> Option<u64> {
        let usual = self.usual().map(|usual| usual.middle_ms);
        Some(pools::idle_ms(settings.idle_ms?, usual))
    }

    /// Whether the next worker does not leave when it is idle.
    pub(super) fn keeps_the_next(&self, settings: &PoolSettings) -> bool {
        let kept = self.lives.iter().filter(|life| life.row.kept).count();
        kept < settings.terms.min as usize
    }

    pub(super) fn up(&self) -> u32 {
        small(self.lives.iter().filter(|life| life.is_up()).count())
    }

    pub(super) fn present(&self, running: u32) -> Present {
        Present {
            running,
            up: self.up(),
            pending: self.pending(),
            slots: self.row.slots,
            failures: self.row.failures,
        }
    }

    /// How long a start takes: the middle of those that are known, and four of five of them.
    /// How long nearly every start takes; where none is known, as long as it may.
    pub(super) fn start_ms(&self, limit: Duration) -> i64 {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let start_ms = self.usual().map_or(limit_ms, |usual| usual.upper_ms);
        i64::try_from(start_ms).unwrap_or(i64::MAX)
    }

    /// The same, and how sure it is.
    pub(super) fn usual(&self) -> Option<Estimate> {
        let mut sorted = self.starts_ms.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        let at = |tenths: usize| sorted[last * tenths / 10];
        Some(Estimate {
            lower_ms: at(1),
            middle_ms: at(5),
            upper_ms: sorted[(last * 9).div_ceil(10)],
        })
    }

    pub(super) fn shown(&self, settings: &PoolSettings) -> Pool {
        let workers = self.lives.iter().map(|life| PoolWorker {
            name: life.row.name.clone(),
            job: life.row.job.clone(),
            state: life.shown_state(),
            submitted_ms: life.row.submitted_ms,
            expected_ms: life.expected_ms,
        });
        Pool {
            pool: settings.name.clone(),
            min: settings.terms.min,
            max: settings.terms.max,
            slots: self.row.slots,
            wanted: self.wanted,
            up: self.up(),
            pending: self.pending(),
            leaving: self.leaving(),
            failures: self.row.failures,
            paused: is_paused(&self.row),
            last_failure: self.row.words.clone().or_else(|| self.late.clone()),
            start: self.usual(),
            workers: workers.collect(),
        }
    }
}

/// The end of one worker is no part of what the pool offers.
pub(super) fn without_end(offer: &Offer) -> Offer {
    let mut offer = offer.clone();
    offer.machine.leaves_at_ms = None;
    offer
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
