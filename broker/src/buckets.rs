//! Token buckets: a burst at once, then a steady rate.
//!
//! In: a key, the time, and how much is taken. Out: whether it may be taken, or after what time.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A token bucket for each key. It refills at a steady rate, and each request takes one.
pub(crate) struct Buckets<Key> {
    a_second: f64,
    most: f64,
    buckets: Mutex<HashMap<Key, (f64, Instant)>>,
}

impl<Key: Clone + Eq + Hash> Buckets<Key> {
    /// Buckets start full.
    pub(crate) fn new(a_second: f64, most: f64) -> Self {
        Self {
            a_second,
            most,
            buckets: Mutex::default(),
        }
    }

    pub(crate) fn take(&self, key: &Key, now: Instant) -> bool {
        self.change(key, now, |left| {
            let enough = *left >= 1.0;
            if enough {
                *left -= 1.0;
            }
            enough
        })
    }

    /// Takes this many even if there are fewer. Returns the time after which none are missing.
    pub(crate) fn charge(&self, key: &Key, now: Instant, tokens: f64) -> Duration {
        let missing = self.change(key, now, |left| {
            *left -= tokens;
            (-*left).max(0.0)
        });
        Duration::from_secs_f64(missing / self.a_second)
    }

    /// Removes full buckets, if there are more than `most` buckets. A full bucket is the same as a missing one.
    pub(crate) fn forget_full(&self, most: usize, now: Instant) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > most {
            buckets.retain(|_, (left, at)| {
                let since = now.saturating_duration_since(*at).as_secs_f64();
                *left + since * self.a_second < self.most
            });
        }
    }

    fn change<T>(&self, key: &Key, now: Instant, change: impl FnOnce(&mut f64) -> T) -> T {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = buckets.entry(key.clone()).or_insert((self.most, now));
        let since = now.saturating_duration_since(*at).as_secs_f64();
        *left = (*left + since * self.a_second).min(self.most);
        *at = now;
        change(left)
    }
}
