//! How a worker leaves: its cells end, what they made goes home, then its sessions end.
//!
//! ```text
//! taking ──asked──> finishing ──all cells over──> handing over ──everything stored──> gone
//!                       └──asked again, or late──> ending ────────────────┘
//! ```

use std::time::Duration;

use baton_protocol::JobId;
use baton_protocol::worker::FromWorker;
use tokio::time::Instant;

use super::Agent;
use super::notebooks::Notebook;
use crate::life_end::LifeEnd;

/// How long the broker may take to store the last events of cells that were ended.
const LAST_WORD: Duration = Duration::from_secs(3);
/// The same where what earlier cells made is not home yet.
const HANDOVER_GRACE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) enum Leave {
    #[default]
    NotAsked,
    /// Running cells go on, until then at most.
    Finishing(Option<Instant>),
    /// No cell runs any more. What they made has until then to reach the broker.
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
    /// Takes nothing more, and lets running cells end. Each ends at its own time limit, if not before.
    pub(super) async fn finish_cells(&mut self, grace: Option<Duration>) {
        if self.leave.has_begun() {
            return;
        }
        match grace {
            Some(grace) => tracing::info!("Leaving: running cells have {} s", grace.as_secs()),
            None => tracing::info!("Leaving when the running cells have ended"),
        }
        let until = grace.and_then(|grace| Instant::now().checked_add(grace));
        // The machine is gone soon after that.
        let end = self.context.end.as_ref().map(LifeEnd::cells_end_at);
        self.leave = Leave::Finishing(until.into_iter().chain(end).min());
        let waiting = self.assignments.iter().filter(|(_, assignment)| {
            !assignment.outbox.has_start() && !assignment.outbox.is_complete()
        });
        let waiting: Vec<JobId> = waiting.map(|(job, _)| *job).collect();
        for job in waiting {
            self.give_up(job);
        }
        self.say_drained().await;
    }

    /// When the worker must begin to leave because its time on the machine ends.
    pub(super) fn drains_at(&self) -> Option<Instant> {
        let end = self.context.end.as_ref()?;
        (!self.leave.has_begun()).then(|| end.drains_at())
    }

    /// When the worker leaves because nobody uses it. It stays for what is not home yet, and for a session that holds
    /// what no other can have.
    pub(super) fn idle_exit_at(&self) -> Option<Instant> {
        let idle = self.context.config.idle_exit?;
        let needed = |entry: &Notebook| !entry.is_idle() || entry.warm && entry.keeps;
        let is_needed = self.leave.has_begun()
            || !self.assignments.is_empty()
            || self.notebooks.values().any(needed);
        let idle_since = (!is_needed).then(|| self.last_used.checked_add(idle))??;
        Some(
            self.stays_until
                .map_or(idle_since, |stays| stays.max(idle_since)),
        )
    }

    pub(super) async fn leave_idle(&mut self) {
        tracing::info!("No cell came for a while, so this worker leaves");
        self.finish_cells(Some(Duration::ZERO)).await;
    }

    pub(super) async fn leave_in_time(&mut self) {
        let grace = self.context.end.as_ref().map(LifeEnd::grace);
        tracing::info!("This worker's time on its machine ends");
        self.finish_cells(grace).await;
    }

    /// The broker gives what has not started to other workers, so it hears first what has.
    pub(super) async fn say_drained(&mut self) {
        self.send_events().await;
        self.line.send(&FromWorker::Drain {}).await;
    }

    /// Ends the cells that run.
    pub(super) async fn end_cells(&mut self) {
        self.finish_cells(Some(Duration::ZERO)).await;
        tracing::info!("Leaving: stopping the running cells");
        self.context.stopping.cancel();
        let defers = self.notebooks.values().any(|entry| entry.defers);
        let grace = if defers { HANDOVER_GRACE } else { LAST_WORD };
        self.leave = Leave::HandingOver(Instant::now() + grace);
    }

    /// Once the last cell has ended, its results have as long to reach the broker as any result has.
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
