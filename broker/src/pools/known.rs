//! What the runner knows about each pool and about each worker that was requested.

use super::{PoolSettings, command::JobState, offers::Lacking};
use crate::{clock::unix_ms, words};
use baton_broker_store::{PoolRow, PoolWorkerRow};
use baton_protocol::{
    EnvironmentState,
    api::{Pool, PoolWorker, PoolWorkerState},
    proxy::Estimate,
};
use baton_scheduling::{
    pools::{self, Kind, Present, Terms},
    queue::Offer,
};
use std::time::Duration;
use tokio::time::Instant;

/// Limits the rows of workers that join external pools and die.
const MOST_LIVES: usize = 16;

/// One worker of a pool, from its request to its end. Only `row` outlives the broker.
pub(super) struct Life {
    pub(super) row: PoolWorkerRow,
    pub(super) state: JobState,
    pub(super) checked: Option<Instant>,
    /// Since when the worker has been missing: its job runs, but it is not connected.
    pub(super) missing_since: Option<Instant>,
    /// It was connected and has been missing for so long that another worker may replace it.
    pub(super) lost: bool,
    pub(super) failing: Option<(Instant, String)>,
    /// Whether its failure has been counted for the pool.
    pub(super) failure_counted: bool,
    pub(super) draining: bool,
    pub(super) connected: bool,
    pub(super) expected_ms: Option<i64>,
}

pub(super) struct Known {
    pub(super) row: PoolRow,
    pub(super) lives: Vec<Life>,
    /// How long the last starts took.
    pub(super) starts_ms: Vec<u64>,
    pub(super) wanted: u32,
    /// For external pools: since when each worker is wanted that has not joined.
    pub(super) asked_ms: Vec<i64>,
    /// Why the wanted workers may never start.
    pub(super) late: Option<String>,
    pub(super) lacking: Lacking,
}

/// Whether too many starts in a row have failed.
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

    /// Records when the worker first connected. Returns how long its start took, if this is the first time.
    pub(super) fn comes(&mut self, settings: &PoolSettings, at_ms: i64) -> Option<u64> {
        if self.row.connected_ms.is_some() {
            return None;
        }
        self.row.connected_ms = Some(at_ms);
        let took_ms = (at_ms - self.row.submitted_ms).max(0).unsigned_abs();
        tracing::info!(
            "{} of pool {} connected after {}",
            self.row.name,
            settings.name,
            words::span(took_ms)
        );
        Some(took_ms)
    }

    /// Whether it has been missing for at least this time.
    pub(super) fn is_late(&mut self, limit: Duration) -> bool {
        let since = *self.missing_since.get_or_insert_with(Instant::now);
        since.elapsed() >= limit
    }

    /// Whether it has never connected. A job that the batch system restarts does not count: earlier
    /// starts do not show how long a restart takes.
    pub(super) fn is_pending(&self) -> bool {
        self.row.connected_ms.is_none()
    }

    /// Whether it can take cells, or has been missing only for a short time.
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

    /// Connected workers that take no more cells but still occupy their machines.
    fn leaving(&self) -> u32 {
        let leaves = |life: &&Life| life.connected && (life.draining || life.failure_counted);
        small(self.lives.iter().filter(leaves).count())
    }

    /// How long a worker may be idle before it leaves.
    pub(super) fn idle_ms(&self, settings: &PoolSettings) -> Option<u64> {
        let usual = self.usual().map(|usual| usual.middle_ms);
        Some(pools::idle_ms(settings.idle_ms?, usual))
    }

    /// Whether the next worker stays when it is idle.
    pub(super) fn keeps_the_next(&self, settings: &PoolSettings) -> bool {
        let kept = self.lives.iter().filter(|life| life.row.kept).count();
        kept < settings.terms.min as usize
    }

    pub(super) fn up(&self) -> u32 {
        small(self.lives.iter().filter(|life| life.is_up()).count())
    }

    /// Whether the next worker is expected to have the labels and environments of the last one.
    pub(super) fn offer_is_current(&self) -> bool {
        self.up() > 0 || self.lacking.is_paused()
    }

    /// Records whether jobs wait for a label or an environment that its workers lack. A worker that
    /// still prepares an environment shows nothing.
    pub(super) fn see_lacking(&mut self, lacks: bool) {
        let prepares = self.row.offer.iter().any(|offer| {
            let mut environments = offer.machine.environments.iter();
            environments
                .any(|environment| matches!(environment.state, EnvironmentState::Preparing {}))
        });
        if lacks || !prepares {
            let is_connected = self.lives.iter().any(|life| life.connected);
            self.lacking.see(lacks, is_connected);
        }
    }

    /// Forgets what the last worker offered, for settings or machines that have changed since.
    pub(super) fn forget_offer(&mut self) {
        self.row.offer = None;
        self.lacking = Lacking::default();
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

    /// How many workers lessons may count on.
    pub(super) fn terms_for_lessons(&self, settings: &PoolSettings) -> Terms {
        match is_paused(&self.row) {
            true => settings.terms.while_paused(self.up()),
            false => settings.terms,
        }
    }

    pub(super) fn kind(&self, settings: &PoolSettings) -> Kind {
        Kind {
            slots: self.row.slots,
            start_ms: self.start_ms(settings.start_limit),
        }
    }

    /// How long most starts take at most. If none is known, the limit for a start.
    fn start_ms(&self, limit: Duration) -> i64 {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let start_ms = self.usual().map_or(limit_ms, |usual| usual.upper_ms);
        i64::try_from(start_ms).unwrap_or(i64::MAX)
    }

    /// How long a start takes: the median of the known ones, and a range for four of five.
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

    /// For external pools: records how many workers are missing, and since when.
    pub(super) fn ask(&mut self, settings: &PoolSettings, wanted: u32) {
        let up = self.up();
        self.wanted = match is_paused(&self.row) {
            true => wanted.min(up),
            false => wanted,
        };
        let joining = self.lives.iter().filter(|life| life.is_pending()).count();
        let missing = self.wanted.saturating_sub(up) as usize;
        let now_ms = unix_ms();
        self.asked_ms
            .resize(missing.saturating_sub(joining), now_ms);
        let limit_ms = i64::try_from(settings.start_limit.as_millis()).unwrap_or(i64::MAX);
        let since = self.asked_ms.first();
        let is_late = since.is_some_and(|since| now_ms.saturating_sub(*since) >= limit_ms);
        if !is_late {
            self.late = None;
        } else if self.late.is_none() {
            let why = format!(
                "A worker has been needed for {}, but none has joined: check what starts them",
                words::span(limit_ms.unsigned_abs())
            );
            tracing::warn!("Pool {}: {why}", settings.name);
            self.late = Some(why);
        }
    }

    /// Whether an external pool has all of its workers. Those that are gone or leaving do not count, so others may replace them.
    pub(super) fn is_full(&self, settings: &PoolSettings) -> bool {
        let most = settings.terms.max as usize;
        let is_there = |life: &&Life| {
            let is_here = life.connected || life.row.connected_ms.is_none();
            is_here && !life.draining && !life.failure_counted
        };
        self.lives.iter().filter(is_there).count() >= most
            || self.lives.len() >= most.saturating_mul(4).saturating_add(MOST_LIVES)
    }
}

/// Removes the time at which this worker leaves, which is not a property of the pool.
pub(super) fn without_end(offer: &Offer) -> Offer {
    let mut offer = offer.clone();
    offer.machine.leaves_at_ms = None;
    offer
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Known, Lacking, PoolRow};

    fn usual(starts_ms: &[u64]) -> Option<(u64, u64, u64)> {
        let pool = Known {
            row: PoolRow {
                name: "slurm".to_owned(),
                failures: 0,
                words: None,
                offer: None,
                settings: String::new(),
                slots: 1,
            },
            lives: Vec::new(),
            starts_ms: starts_ms.to_vec(),
            wanted: 0,
            asked_ms: Vec::new(),
            late: None,
            lacking: Lacking::default(),
        };
        let usual = pool.usual()?;
        Some((usual.lower_ms, usual.middle_ms, usual.upper_ms))
    }

    #[test]
    fn a_start_usually_takes_as_long_as_the_last_ones() {
        assert_eq!(usual(&[]), None);
        assert_eq!(usual(&[40]), Some((40, 40, 40)));
        assert_eq!(usual(&[30, 10, 20]), Some((10, 20, 30)));
        let starts: Vec<u64> = (0..=100).rev().collect();
        assert_eq!(usual(&starts), Some((10, 50, 90)));
    }
}
