//! How fast the cells of one person enter the queue: a burst without delay, then a steady rate.
//!
//! The broker keeps a row of each cell for as long as its history reaches, so without a limit one
//! person could fill its disk with short cells. A cell above the rate waits, and so do the later
//! messages of its notebook.

use crate::buckets::{Buckets, Rate};
use std::time::Duration;
use tokio::time::Instant;

/// In cells. The sixteen sessions of a `gpu.map` stay below it if a call takes two seconds. A burst
/// is many notebooks that run all of their cells, or a short `gpu.map` without `chunksize`.
const RATE: Rate = Rate {
    a_second: 10.0,
    burst: 1000.0,
};
/// Above this number of people, those who have submitted nothing for a while are forgotten.
const REMEMBERED: usize = 1000;

pub(crate) struct Submissions(Buckets<String>);

impl Default for Submissions {
    fn default() -> Self {
        Self(Buckets::new(RATE))
    }
}

impl Submissions {
    /// Counts a cell of this person. Returns how long it must wait.
    pub(crate) fn wait(&self, person: &str, now: Instant) -> Duration {
        self.0.forget_full(REMEMBERED, now);
        self.0.charge(&person.to_owned(), now, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_further_cells_wait_their_turn() {
        let submissions = Submissions::default();
        let start = Instant::now();
        let mut waits = (0..1020).map(|_| submissions.wait("ada", start));
        assert!(waits.by_ref().take(1000).all(|wait| wait.is_zero()));
        assert_eq!(waits.next(), Some(Duration::from_millis(100)));
        assert_eq!(waits.last(), Some(Duration::from_secs(2)));
        assert_eq!(submissions.wait("bob", start), Duration::ZERO);
        let later = start + Duration::from_secs(10);
        assert_eq!(submissions.wait("ada", later), Duration::ZERO);
    }
}
