//! Limits the requests per second of each person, and their open connections.
//!
//! Programs with the broker's own token belong to the operator and are not limited. Neither are
//! workers, because they send requests on behalf of all people.

use super::{Caller, Shared};
use crate::web::api::ApiError;
use axum::{
    Extension,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use baton_broker_queue::Identity;
use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::time::Instant;

/// A page loads several files at once, and a program may catch up after a pause.
const BURST_SECONDS: f64 = 4.0;

/// Limits the requests of each person.
pub(crate) struct Limits(Buckets<String>);

/// A token bucket for each key. It refills at a steady rate, and each request takes one.
pub(super) struct Buckets<Key> {
    a_second: f64,
    most: f64,
    buckets: Mutex<HashMap<Key, (f64, Instant)>>,
}

impl Limits {
    pub(crate) fn new(requests_a_second: u32) -> Self {
        let a_second = f64::from(requests_a_second);
        Self(Buckets::new(a_second, a_second * BURST_SECONDS))
    }

    /// Counts a request, or refuses it.
    pub(super) fn admit(&self, identity: &Identity) -> Result<(), ApiError> {
        match limited(identity) {
            Some(person) if !self.0.take(&person.to_owned(), Instant::now()) => {
                Err(ApiError::TooOften)
            }
            _ => Ok(()),
        }
    }

    /// Counts an admitted request as several more, which delays the next ones.
    pub(super) fn charge(&self, identity: &Identity, requests: usize) {
        if let Some(person) = limited(identity) {
            let charge = |left: &mut f64| *left -= requests as f64;
            self.0.change(&person.to_owned(), Instant::now(), charge);
        }
    }
}

impl<Key: Clone + Eq + Hash> Buckets<Key> {
    /// Buckets start full.
    pub(super) fn new(a_second: f64, most: f64) -> Self {
        Self {
            a_second,
            most,
            buckets: Mutex::default(),
        }
    }

    pub(super) fn take(&self, key: &Key, now: Instant) -> bool {
        self.change(key, now, |left| {
            let enough = *left >= 1.0;
            if enough {
                *left -= 1.0;
            }
            enough
        })
    }

    /// Removes full buckets, if there are more than `most` buckets. A full bucket is the same as a missing one.
    pub(super) fn forget_full(&self, most: usize, now: Instant) {
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

pub(super) fn limited(identity: &Identity) -> Option<&str> {
    identity.person().filter(|_| !identity.may_be_worker())
}

pub(super) async fn limit(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(too_often) = shared.limits.admit(&caller.identity) {
        shared.metrics.limited();
        return too_often.into_response();
    }
    next.run(request).await
}

/// Counts each person's long-lived connections: those of notebooks and of live pages.
pub(crate) struct Connections {
    most: u32,
    open: Mutex<HashMap<String, u32>>,
}

/// One of a person's connections. It counts until it is dropped.
pub(crate) struct Counted(Option<(Arc<Connections>, String)>);

impl Connections {
    pub(crate) fn new(most: u32) -> Self {
        Self {
            most,
            open: Mutex::default(),
        }
    }

    /// Counts one more, or refuses it.
    pub(crate) fn open(self: &Arc<Self>, identity: &Identity) -> Result<Counted, ApiError> {
        let Some(person) = limited(identity) else {
            return Ok(Counted(None));
        };
        let mut all = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = all.entry(person.to_owned()).or_default();
        if *open >= self.most {
            return Err(ApiError::TooManyConnections { most: self.most });
        }
        *open += 1;
        Ok(Counted(Some((Arc::clone(self), person.to_owned()))))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some((connections, person)) = &self.0 else {
            return;
        };
        let open = connections.open.lock();
        let mut all = open.unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = all.get_mut(person) {
            *open -= 1;
            if *open == 0 {
                all.remove(person);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_fills_again() {
        let limits = Limits::new(2);
        let start = Instant::now();
        let takes = |person: &str, seconds: f64| {
            let person = &person.to_owned();
            let now = start + Duration::from_secs_f64(seconds);
            (0..20).filter(|_| limits.0.take(person, now)).count()
        };
        assert_eq!(takes("ada", 0.0), 8);
        assert_eq!(takes("bob", 0.0), 8);
        assert_eq!(takes("ada", 1.5), 3);
        assert_eq!(takes("ada", 1000.0), 8);
    }
}
