//! Pauses between attempts, so that many clients do not reconnect in the same instant.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// The longest pause at first: a broker ends the cells of a notebook that is away for a few seconds.
const LONGEST_AT_FIRST: Duration = Duration::from_secs(1);
/// How long that is, without the attempts themselves.
const AT_FIRST: Duration = Duration::from_secs(10);

/// Each pause is twice as long as the last, up to one second for the first ten seconds and up to ten
/// seconds after that, and shortened by a random fraction of at most a half.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    /// The sum of all pauses.
    paused: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            next: FIRST,
            paused: Duration::ZERO,
        }
    }
}

impl Backoff {
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next.mul_f64(1.0 - random_fraction() / 2.0);
        self.paused += delay;
        let longest = match self.paused < AT_FIRST {
            true => LONGEST_AT_FIRST,
            false => LONGEST,
        };
        self.next = (self.next * 2).min(longest);
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
        let mut paused = Duration::ZERO;
        let (mut whole, mut longest) = (FIRST, LONGEST_AT_FIRST);
        for index in 0..40 {
            let delay = backoff.next_delay();
            assert!((whole / 2..=whole).contains(&delay), "{index}: {delay:?}");
            paused += delay;
            if paused >= AT_FIRST {
                longest = LONGEST;
            }
            whole = (whole * 2).min(longest);
        }
        assert_eq!(whole, LONGEST);
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST);
    }

    /// The broker's `proxy_grace` is 5 s.
    #[test]
    fn a_network_that_is_back_after_three_seconds_is_found_before_the_grace_ends() {
        for _ in 0..100 {
            let mut backoff = Backoff::default();
            let mut at = Duration::ZERO;
            while at < Duration::from_secs(3) {
                at += backoff.next_delay();
            }
            assert!(at <= Duration::from_secs(4), "{at:?}");
        }
    }

    #[test]
    fn pauses_differ() {
        let delay = || Backoff::default().next_delay();
        let first = delay();
        assert!((0..50).any(|_| delay() != first));
    }
}
