//! How fast the broker reads the messages of one person's notebooks: a burst without delay, then a steady rate.
//!
//! In: the time of each message. Out: how long to delay the message, or that the connection must end.
//!
//! **Invariant:** pure; a person below the steady rate is never delayed, and more connections allow no more messages.

use crate::buckets::{Bucket, Rate};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// In messages. A cell that opens many files of the notebook's folder causes a message for each.
const RATE: Rate = Rate {
    a_second: 500.0,
    burst: 2000.0,
};
/// A person who has been slowed down for this long without a break loses a connection.
const PATIENCE: Duration = Duration::from_secs(60);

/// The paces of all people.
#[derive(Default)]
pub(crate) struct Paces(Mutex<HashMap<String, Pace>>);

/// One person's pace, or that of a connection without a person.
#[derive(Clone)]
pub(crate) struct Pace(Arc<Mutex<Counted>>);

struct Counted {
    bucket: Bucket,
    slowed_since: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Wait(Duration),
    TooMuch,
}

impl Paces {
    /// Those who have sent nothing for a while are forgotten.
    pub(crate) fn of(&self, person: &str, now: Instant) -> Pace {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paces.retain(|_, pace| !pace.is_unused(now));
        let pace = paces.entry(person.to_owned());
        pace.or_insert_with(|| Pace::new(now)).clone()
    }
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Counted {
            bucket: Bucket::new(RATE, now),
            slowed_since: None,
        })))
    }

    /// Counts a message.
    pub(crate) fn count(&self, now: Instant) -> Verdict {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = counted.bucket.charge(now, 1.0);
        if wait.is_zero() {
            counted.slowed_since = None;
            return Verdict::Wait(Duration::ZERO);
        }
        let slowed_since = *counted.slowed_since.get_or_insert(now);
        if now.saturating_duration_since(slowed_since) <= PATIENCE {
            return Verdict::Wait(wait);
        }
        // The person's other connections have the same patience again.
        counted.slowed_since = None;
        Verdict::TooMuch
    }

    /// Whether it is the same as a new one, and no connection has it.
    fn is_unused(&self, now: Instant) -> bool {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::strong_count(&self.0) == 1 && counted.bucket.is_full(now)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// When the last message was let through, in seconds, and whether the connection remained.
    fn sent(pace: &Pace, messages: usize, start: Instant) -> (f64, bool) {
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
        let pace = Pace::new(start);
        assert_eq!(sent(&pace, 2000, start), (0.0, true));
        let (seconds, lasts) = sent(&pace, 5000, start);
        assert!(lasts && (9.9..10.1).contains(&seconds), "{seconds}");
        let flood = Pace::new(start);
        let (seconds, lasts) = sent(&flood, 1_000_000, start);
        assert!(!lasts && (60.0..61.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_person_has_one_burst_however_often_notebooks_connect() {
        let start = Instant::now();
        let paces = Paces::default();
        for _ in 0..4 {
            assert_eq!(sent(&paces.of("mallory", start), 500, start), (0.0, true));
        }
        let (seconds, lasts) = sent(&paces.of("mallory", start), 500, start);
        assert!(lasts && (0.9..1.1).contains(&seconds), "{seconds}");
        assert_eq!(sent(&paces.of("ada", start), 2000, start), (0.0, true));
        let later = start + Duration::from_secs(60);
        drop(paces.of("eve", later));
        assert_eq!(paces.0.lock().unwrap().len(), 1, "only Eve is remembered");
    }

    #[test]
    fn a_notebook_at_the_steady_rate_never_waits() {
        let start = Instant::now();
        let pace = Pace::new(start);
        for message in 0..100_000_u32 {
            let now = start + Duration::from_secs_f64(f64::from(message) / RATE.a_second);
            assert_eq!(pace.count(now), Verdict::Wait(Duration::ZERO));
        }
    }
}
