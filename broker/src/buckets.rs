//! Token buckets: a burst at once, then a steady rate.
//!
//! In: a key, the time, and how much is taken. Out: whether it may be taken, or after what time.
//!
//! A bucket may be charged more than it holds, which delays what comes next. The crate `governor`
//! only refuses.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How fast a bucket refills, in tokens per second, and how many it holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) a_second: f64,
    pub(crate) burst: f64,
}

pub(crate) struct Bucket {
    rate: Rate,
    left: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            left: rate.burst,
            at: now,
        }
    }

    /// Takes a token if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.left = self.left_at(now);
        self.at = now;
        let is_enough = self.left >= 1.0;
        if is_enough {
            self.left -= 1.0;
        }
        is_enough
    }

    /// Takes this many even if there are fewer. Returns the time after which none are missing.
    pub(crate) fn charge(&mut self, now: Instant, tokens: f64) -> Duration {
        self.left = self.left_at(now) - tokens;
        self.at = now;
        Duration::from_secs_f64((-self.left).max(0.0) / self.rate.a_second)
    }

    /// A full bucket is the same as a new one.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.left_at(now) >= self.rate.burst
    }

    fn left_at(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left + since * self.rate.a_second).min(self.rate.burst)
    }
}

/// A bucket for each key.
pub(crate) struct Buckets<Key> {
    rate: Rate,
    buckets: Mutex<HashMap<Key, Bucket>>,
}

impl<Key: Clone + Eq + Hash> Buckets<Key> {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            buckets: Mutex::default(),
        }
    }

    pub(crate) fn take(&self, key: &Key, now: Instant) -> bool {
        self.change(key, now, |bucket| bucket.take(now))
    }

    pub(crate) fn charge(&self, key: &Key, now: Instant, tokens: f64) -> Duration {
        self.change(key, now, |bucket| bucket.charge(now, tokens))
    }

    /// Removes full buckets, if there are more than `most` buckets.
    pub(crate) fn forget_full(&self, most: usize, now: Instant) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > most {
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
    }

    fn change<T>(&self, key: &Key, now: Instant, change: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(key.clone());
        change(bucket.or_insert_with(|| Bucket::new(self.rate, now)))
    }
}
