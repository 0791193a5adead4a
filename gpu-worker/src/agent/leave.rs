//! How a worker leaves: its cells end, their results are sent, then its sessions end.
//!
//! ```text
//! accepting ──asked──> finishing ──all cells ended──> handing over ──everything stored──> gone
//!                          └──asked again, or late──> ending ────────────────┘
//! ```

use super::{Agent, notebooks::Notebook};
use crate::life_end::LifeEnd;
use baton_protocol::{JobId, worker::FromWorker};
use std::time::Duration;
use tokio::time::Instant;

/// How long the broker may take to store the last events of cells that the worker ended.
const LAST_WORD: Duration = Duration::from_secs(3);
/// The same if deferred state of earlier cells has not been sent yet.
const HANDOVER_GRACE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) enum Leave {
    #[default]
    NotAsked,
    /// Running cells continue, at most until this time.
    Finishing(Option<Instant>),
    /// No cell runs any more. Results must reach the broker before this time.
    HandingOver(Instant),
}

impl Leave {
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, Self::NotAsked)
    }

    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::HandingOver(_))
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::NotAsked => None,
            Self::Finishing(until) => *until,
            Self::HandingOver(until) => Some(*until),
        }
    }
}

impl Agent {
    /// Accepts nothing new, and lets running cells end, each at its own time limit at the latest.
    pub(super) async fn finish_cells(&mut self, grace: Option<Duration>) {
        if self.leave.has_begun() {
            return;
        }
        match grace {
            Some(grace) => tracing::info!("Leaving: running cells have {} s", grace.as_secs()),
            None => tracing::info!("Leaving when the running cells have ended"),
        }
        let until = grace.and_then(|grace| Instant::now().checked_add(grace));
        // The machine is gone soon after this time.
        let end = self.context.end.as_ref().map(LifeEnd::cells_end_at);
        self.leave = Leave::Finishing(until.into_iter().chain(end).min());
        let waiting = self.assignments.iter().filter(|(_, assignment)| {
            !assignment.outbox.has_start() && !assignment.outbox.is_complete()
        });
        let waiting: Vec<JobId> = waiting.map(|(job, _)| *job).collect();
        for job in waiting {
            self.give_up(job);
        }
        self.report_drained().await;
    }

    /// When the worker must begin to leave because its time on the machine ends.
    pub(super) fn drains_at(&self) -> Option<Instant> {
        let end = self.context.end.as_ref()?;
        (!self.leave.has_begun()).then(|| end.drains_at())
    }

    /// When the worker exits for being idle. It stays while it prepares an environment, while deferred state has not
    /// been sent, and while a session holds objects that no other session can hold.
    pub(super) fn idle_exit_at(&self) -> Option<Instant> {
        let idle = self.context.config.idle_exit?;
        let needed = |entry: &Notebook| !entry.is_idle() || entry.warm && entry.keeps;
        let is_needed = self.leave.has_begun()
            || !self.assignments.is_empty()
            || self.context.environments.are_being_prepared()
            || self.notebooks.values().any(needed);
        let idle_since = (!is_needed).then(|| self.last_used.checked_add(idle))??;
        Some(
            self.stays_until
                .map_or(idle_since, |stays| stays.max(idle_since)),
        )
    }

    pub(super) async fn leave_idle(&mut self) {
        tracing::info!("No cell arrived for a while, so this worker leaves");
        self.finish_cells(Some(Duration::ZERO)).await;
    }

    /// If a batch system announces the end of the worker's time, running cells have the time that is left. Otherwise
    /// the machine may be taken away soon.
    pub(super) async fn leave_when_cells_end(&mut self) {
        match &self.context.end {
            Some(end) if end.is_ending() => self.leave_in_time().await,
            _ => self.finish_cells(self.context.config.stop_grace).await,
        }
    }

    pub(super) async fn leave_in_time(&mut self) {
        let grace = self.context.end.as_ref().map(LifeEnd::grace);
        tracing::info!("This worker's time on its machine ends");
        self.finish_cells(grace).await;
    }

    /// Sends pending events first, because on `Drain` the broker gives all jobs that have not started to other
    /// workers.
    pub(super) async fn report_drained(&mut self) {
        self.send_events().await;
        self.line.send(&FromWorker::Drain {}).await;
    }

    /// Ends the running cells.
    pub(super) async fn end_cells(&mut self) {
        self.finish_cells(Some(Duration::ZERO)).await;
        tracing::info!("Leaving: stopping the running cells");
        self.context.stopping.cancel();
        let defers = self.notebooks.values().any(|entry| entry.defers);
        let grace = if defers { HANDOVER_GRACE } else { LAST_WORD };
        self.leave = Leave::HandingOver(Instant::now() + grace);
    }

    /// Once the last cell has ended, its results have the usual time (`patience`) to reach the broker.
    pub(super) fn hand_over(&mut self) {
        let mut assignments = self.assignments.values();
        if matches!(self.leave, Leave::Finishing(_))
            && assignments.all(|assignment| assignment.outbox.has_end())
        {
            let until = Instant::now() + self.context.config.patience;
            self.leave = Leave::HandingOver(until);
        }
    }

    pub(super) fn may_leave(&self) -> bool {
        self.leave.is_last() && !self.has_something_to_say()
    }
}
