//! How long a submitted cell waits for a broker that does not answer.

use super::{
    cell::RemoteCell,
    failure::{Absence, Failure},
    link::Link,
    stop::Stop,
};
use baton_protocol::{JobId, proxy::FromProxy};
use std::time::Duration;
use tokio::time::Instant;

/// How long an interrupted cell waits while nothing arrives, for the broker's confirmation or for an unreachable broker.
/// That is enough for some retransmissions on a poor network, or for a broker on a busy machine. After its confirmation,
/// the broker may take any time to return the cell's changes.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The broker has been asked to cancel the job.
    cancelling: bool,
    /// When an interrupted cell no longer waits for the broker.
    until: Option<Instant>,
    /// Since when the broker cannot be used, and why the last attempt to reach it failed.
    down: Option<(Instant, Absence)>,
}

impl Silence {
    /// Asks the broker to cancel the job.
    pub(super) async fn cancel(&mut self, job: JobId, link: &Link) {
        link.send(FromProxy::Cancel { job }).await;
        self.cancelling = true;
        self.until = Some(Instant::now() + CANCEL_PATIENCE);
    }

    /// Output that was sent before the confirmation still arrives.
    pub(super) fn broker_answers(&mut self) {
        if self.until.is_some() && !self.is_down() {
            self.until = Some(Instant::now() + CANCEL_PATIENCE);
        }
    }

    /// The broker cancels the job.
    pub(super) fn cancel_confirmed(&mut self) {
        self.until = None;
    }

    /// Returns whether it must be asked to cancel the job again: the first message may have been lost.
    pub(super) fn broker_is_up(&mut self) -> bool {
        self.down = None;
        self.cancelling
    }

    pub(super) fn broker_is_down(&mut self, absence: Absence) {
        let since = self
            .down
            .take()
            .map_or_else(Instant::now, |(since, _)| since);
        self.until = self.cancelling.then(|| since + CANCEL_PATIENCE);
        self.down = Some((since, absence));
    }

    pub(super) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    /// When to [`Self::check`], if not earlier.
    pub(super) fn next_check(&self, earlier: Duration) -> Duration {
        let until = self.until.unwrap_or_else(|| Instant::now() + earlier);
        earlier.min(until.saturating_duration_since(Instant::now()))
    }

    /// Fails if the cell has waited long enough. `patience`: for a broker that is unreachable.
    pub(super) fn check(&self, cell: &RemoteCell<'_>, patience: Duration) -> Result<(), Stop> {
        if self.until.is_some_and(|until| until <= Instant::now()) {
            return Err(Stop::Cancelled);
        }
        match &self.down {
            Some((since, absence)) if since.elapsed() > cell.patience(patience) => {
                Err(Failure::absent(absence, cell.named_job(), cell.started).into())
            }
            _ => Ok(()),
        }
    }
}
