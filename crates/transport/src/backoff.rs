//! Pauses between attempts, so that many clients do not reconnect in the same instant.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Each pause is twice as long as the last, up to ten seconds, and shortened by a random fraction
/// of at most a half.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next.mul_f64(1.0 - random_fraction() / 2.0);
        self.next = (self.next * 2).min(LONGEST);
        delay
    }

    /// Starts again with a short pause. Call this after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// At least 0 and below 1. A hasher with random keys is random enough for this.
fn random_fraction() -> f64 {
    let random = RandomState::new().hash_one(()) >> 32;
    f64::from(u32::try_from(random).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_start_anew() {
        let mut backoff = Backoff::default();
        let delays: Vec<Duration> = (0..20).map(|_| backoff.next_delay()).collect();
        for (index, delay) in delays.iter().enumerate() {
            let whole = (FIRST * (1 << index.min(10))).min(LONGEST);
            assert!((whole / 2..=whole).contains(delay), "{index}: {delay:?}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST);
    }

    #[test]
    fn pauses_differ() {
        let delay = || Backoff::default().next_delay();
        let first = delay();
        assert!((0..50).any(|_| delay() != first));
    }
}
