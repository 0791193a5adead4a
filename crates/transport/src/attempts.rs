//! When a transfer is tried again.

use crate::Backoff;
use baton_chunks::Severity;
use std::time::Duration;
use tokio::time::Instant;

/// The attempts of one transfer, which are repeated for as long as `patience` allows.
#[derive(Debug)]
pub struct Attempts {
    began: Instant,
    patience: Duration,
    backoff: Backoff,
}

impl Attempts {
    /// The first attempt begins now.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self {
            began: Instant::now(),
            patience,
            backoff: Backoff::default(),
        }
    }

    /// The pause before the next attempt; `None` if the same transfer cannot succeed any more, or patience has ended.
    pub fn delay_after(&mut self, severity: Severity) -> Option<Duration> {
        let is_worth_it = severity == Severity::Passing && self.began.elapsed() < self.patience;
        is_worth_it.then(|| self.backoff.next_delay())
    }
}
