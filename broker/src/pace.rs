//! How fast the broker reads the messages of one notebook: a burst without delay, then a steady rate.
//!
//! In: the time of each message. Out: how long to delay the message, or that the connection must end.
//!
//! **Invariant:** pure; a notebook below the steady rate is never delayed.

use crate::buckets::{Bucket, Rate};
use std::time::Duration;
use tokio::time::Instant;

/// In messages. A cell that opens many files of the notebook's folder causes a message for each.
const RATE: Rate = Rate {
    a_second: 500.0,
    burst: 2000.0,
};
/// A notebook that has been slowed down for this long without a break is disconnected.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Pace {
    bucket: Bucket,
    slowed_since: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Wait(Duration),
    TooMuch,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            bucket: Bucket::new(RATE, now),
            slowed_since: None,
        }
    }

    /// Counts a message.
    pub(crate) fn count(&mut self, now: Instant) -> Verdict {
        let wait = self.bucket.charge(now, 1.0);
        if wait.is_zero() {
            self.slowed_since = None;
            return Verdict::Wait(Duration::ZERO);
        }
        let slowed_since = *self.slowed_since.get_or_insert(now);
        match now.saturating_duration_since(slowed_since) > PATIENCE {
            true => Verdict::TooMuch,
            false => Verdict::Wait(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the last message was let through, in seconds, and whether the connection remained.
    fn sent(pace: &mut Pace, messages: usize, start: Instant) -> (f64, bool) {
        let mut now = start;
        for _ in 0..messages {
            match pace.count(now) {
                Verdict::Wait(wait) => now += wait,
                Verdict::TooMuch => return ((now - start).as_secs_f64(), false),
            }
        }
        ((now - start).as_secs_f64(), true)
    }

    #[test]
    fn a_burst_passes_and_a_flood_is_slowed_down_then_cut() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(sent(&mut pace, 2000, start), (0.0, true));
        let (seconds, lasts) = sent(&mut pace, 5000, start);
        assert!(lasts && (9.9..10.1).contains(&seconds), "{seconds}");
        let mut flood = Pace::new(start);
        let (seconds, lasts) = sent(&mut flood, 1_000_000, start);
        assert!(!lasts && (60.0..61.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_notebook_at_the_steady_rate_never_waits() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for message in 0..100_000_u32 {
            let now = start + Duration::from_secs_f64(f64::from(message) / RATE.a_second);
            assert_eq!(pace.count(now), Verdict::Wait(Duration::ZERO));
        }
    }
}
