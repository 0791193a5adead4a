//! What can end a cell early: an interrupt, its time limit, too much memory, a session that does not react, the end of
//! the worker.

use crate::{
    Config,
    context::Context,
    job::Ending,
    life_end::LifeEnd,
    messages::{self, Limit},
    processes,
    session::Session,
};
use baton_protocol::{Cell, JobKind, Outcome, RemoteError};
use std::time::Duration;
use tokio::time::Instant;

/// How much longer a cell that waits for the GPU may take to react to an interrupt. The session that has the GPU is ended
/// earlier if it does not give it up.
const GPU_PATIENCE: Duration = Duration::from_secs(120);

pub(super) struct Limits {
    kind: JobKind,
    /// How long the cell may run.
    time: Option<Limit>,
    /// The time limit interrupted the cell, not the student.
    time_is_up: bool,
    cancelled: Option<Cancelled>,
    grace: Duration,
    /// How long the session may take after the cell's code has ended.
    patience: Duration,
    code_ended: Option<Instant>,
}

/// When the session of an interrupted cell is ended.
struct Cancelled {
    ends: Instant,
    /// The end while the cell waits for the GPU.
    ends_at_latest: Instant,
}

impl Limits {
    pub(super) fn new(config: &Config, cell: &Cell) -> Self {
        Self {
            kind: cell.kind,
            time: cell.timeout_ms.map(|time| Limit {
                time: Duration::from_millis(time),
                longest: cell.longest_timeout_ms.map(Duration::from_millis),
            }),
            time_is_up: false,
            cancelled: None,
            grace: config.cancel_grace,
            patience: config.patience,
            code_ended: None,
        }
    }

    pub(super) fn cancel(&mut self) {
        let ends = Instant::now() + self.grace;
        self.cancelled = Some(Cancelled {
            ends,
            ends_at_latest: ends + GPU_PATIENCE,
        });
    }

    /// Time in which an interrupted cell waits for the GPU does not count, because Python handles the interrupt only
    /// when the call returns.
    pub(super) async fn wait_for_gpu(&mut self, session: &Session) {
        if let Some(cancelled) = &mut self.cancelled
            && session.waits_for_gpu().await
        {
            cancelled.postpone(self.grace);
        }
    }

    pub(super) fn end_time(&mut self) {
        self.time_is_up = true;
        self.cancel();
    }

    pub(super) fn on_code_ended(&mut self) {
        self.code_ended = Some(Instant::now());
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.is_some()
    }

    /// When the session's time to react to the interrupt is over.
    pub(super) fn cancel_ignored_at(&self) -> Option<Instant> {
        let cancelled = self.cancelled.as_ref()?;
        match self.code_ended {
            Some(ended) => ended.checked_add(self.patience),
            None => Some(cancelled.ends),
        }
    }

    /// When the time of a cell that runs since `since` is over.
    pub(super) fn time_is_up_at(&self, since: Instant) -> Option<Instant> {
        let time = self.time.filter(|_| !self.is_cancelled())?;
        // A limit beyond the clock's range is no limit.
        since.checked_add(time.time)
    }

    pub(super) fn ending_of_ignored_cancel(&self) -> Ending {
        let cancelled =
            || Ending::without_state(Outcome::Cancelled, messages::cancelled(self.kind));
        self.ending_in_time().unwrap_or_else(cancelled)
    }

    /// The ending without state of a cell that the time limit has interrupted.
    pub(super) fn ending_in_time(&self) -> Option<Ending> {
        let limit = self.time.filter(|_| self.time_is_up)?;
        let error = messages::timed_out(self.kind, limit);
        Some(Ending::without_state(Outcome::TimedOut, error))
    }

    /// How a cell ended, from what its session reports.
    pub(super) fn outcome(
        &self,
        reported: Outcome,
        error: Option<RemoteError>,
    ) -> (Outcome, Option<RemoteError>) {
        if !(self.time_is_up && reported == Outcome::Cancelled) {
            return (reported, error);
        }
        let error = messages::stopped_in_time(self.kind, self.time.unwrap_or_default(), error);
        (Outcome::TimedOut, Some(error))
    }
}

impl Cancelled {
    fn postpone(&mut self, grace: Duration) {
        self.ends = (Instant::now() + grace).min(self.ends_at_latest);
    }
}

/// How much memory all processes of the session use together.
pub(super) fn memory(
    session: &Session,
    context: &Context,
) -> impl Future<Output = Option<u64>> + Send + 'static {
    let limit = context.config.session_memory_bytes;
    let kernel = session.kernel();
    async move {
        let look = move || processes::resident_bytes(kernel, limit);
        tokio::task::spawn_blocking(look).await.ok()
    }
}

pub(super) fn stopped(context: &Context, kind: JobKind) -> Ending {
    let is_ending = context.end.as_ref().is_some_and(LifeEnd::is_ending);
    let why = match is_ending {
        true => messages::time_is_over(kind),
        false => messages::shutting_down(kind),
    };
    Ending::without_state(Outcome::WorkerLost, why)
}

pub(super) fn too_much_memory(
    kind: JobKind,
    session: &Session,
    context: &Context,
    bytes: u64,
) -> Option<Ending> {
    if session.memory_is_limited() {
        return None; // The system itself ends what exceeds the limit.
    }
    let limit = context.config.session_memory_bytes?;
    (bytes > limit).then(|| {
        let error = messages::out_of_memory(kind, bytes, limit);
        Ending::without_state(Outcome::OutOfMemory, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_a_cell_waits_for_the_gpu_does_not_count_within_bounds() {
        let (grace, begin) = (Duration::from_secs(10), Instant::now());
        let mut cancelled = Cancelled {
            ends: begin + grace,
            ends_at_latest: begin + grace + GPU_PATIENCE,
        };
        for (waited, ends) in [(5, 15), (100, 110), (125, 130), (129, 130)] {
            tokio::time::advance(begin + Duration::from_secs(waited) - Instant::now()).await;
            cancelled.postpone(grace);
            assert_eq!(cancelled.ends, begin + Duration::from_secs(ends));
        }
    }
}
