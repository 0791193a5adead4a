//! What can end a cell early: an interrupt, its time limit, too much memory, a session that does not react.

use baton_protocol::Outcome;
use tokio::time::Instant;

use super::{Phase, Run};
use crate::job::Ending;
use crate::messages;
use crate::processes;

/// Whether the cell has been asked to stop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cancel {
    NotAsked,
    /// If the cell has not stopped at this time, its session is ended.
    Asked(Instant),
}

impl Run<'_> {
    /// When the session's time to react to the interrupt is over. An interrupted cell returns its changes, and that
    /// may take as long as for any other cell.
    pub(super) fn cancel_ignored_at(&self) -> Option<Instant> {
        match (&self.phase, self.cancel, self.ended) {
            (Phase::Collecting { .. }, ..) | (_, Cancel::NotAsked, _) => None,
            (_, Cancel::Asked(_), Some(ended)) => ended.checked_add(self.context.config.patience),
            (_, Cancel::Asked(instant), None) => Some(instant),
        }
    }

    pub(super) fn time_is_up_at(&self) -> Option<Instant> {
        match (&self.phase, self.cancel, self.limit) {
            // A limit beyond the clock's range is no limit.
            (
                Phase::Running { since, .. } | Phase::Fetching { since, .. },
                Cancel::NotAsked,
                Some(limit),
            ) => since.checked_add(limit.time),
            _ => None,
        }
    }

    pub(super) fn on_cancel_ignored(&self) -> Ending {
        match self.time_is_up {
            true => Ending::without_state(
                Outcome::TimedOut,
                messages::timed_out(self.limit.unwrap_or_default()),
            ),
            false => Ending::without_state(Outcome::Cancelled, messages::cancelled()),
        }
    }

    pub(super) fn on_cancelled(&mut self) {
        self.cancel = Cancel::Asked(Instant::now() + self.context.config.cancel_grace);
        let listens = matches!(
            self.phase,
            Phase::Applying { .. } | Phase::Running { .. } | Phase::Fetching { .. }
        );
        if listens {
            self.session.interrupt();
        }
    }

    /// How much memory all processes of the session use together.
    pub(super) fn memory(&self) -> impl Future<Output = Option<u64>> + Send + 'static {
        let limit = self.context.config.session_memory_bytes;
        let kernel = self.session.kernel();
        async move {
            let look = move || processes::resident_bytes(kernel, limit);
            tokio::task::spawn_blocking(look).await.ok()
        }
    }

    pub(super) fn on_memory(&mut self, bytes: Option<u64>) -> Option<Ending> {
        let bytes = bytes?;
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(bytes);
        if self.session.memory_is_limited() {
            return None; // The system itself ends what exceeds the limit.
        }
        let limit = self.context.config.session_memory_bytes?;
        (bytes > limit).then(|| {
            let error = messages::out_of_memory(bytes, limit);
            Ending::without_state(Outcome::OutOfMemory, error)
        })
    }
}
