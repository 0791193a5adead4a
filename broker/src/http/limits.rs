//! How much a person's token may ask in a second, and how many connections of a person may be open.
//!
//! Programs that hold the broker's own token are the operator's, and are not limited; nor are workers, which ask for
//! everybody.

use super::{Caller, Shared};
use crate::{api::ApiError, people::Identity};
use axum::{
    Extension,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::time::Instant;

/// A page loads several files at once, and a program may catch up.
const BURST_SECONDS: f64 = 4.0;

/// A bucket for each person, which fills all the time and from which each request takes one.
pub(crate) struct Limits {
    a_second: f64,
    buckets: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Limits {
    pub(crate) fn new(requests_a_second: u32) -> Self {
        Self {
            a_second: requests_a_second.into(),
            buckets: Mutex::default(),
        }
    }

    /// Counts a request, or refuses it.
    pub(super) fn admit(&self, identity: &Identity) -> Result<(), ApiError> {
        match limited(identity) {
            Some(person) if !self.take(person, Instant::now()) => Err(ApiError::TooOften),
            _ => Ok(()),
        }
    }

    /// Counts a request that was admitted as several: the next ones wait for it.
    pub(super) fn charge(&self, identity: &Identity, requests: usize) {
        if let Some(person) = limited(identity) {
            self.change(person, Instant::now(), |left| *left -= requests as f64);
        }
    }

    fn take(&self, person: &str, now: Instant) -> bool {
        self.change(person, now, |left| {
            let enough = *left >= 1.0;
            if enough {
                *left -= 1.0;
            }
            enough
        })
    }

    fn change<T>(&self, person: &str, now: Instant, change: impl FnOnce(&mut f64) -> T) -> T {
        let most = self.a_second * BURST_SECONDS;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = buckets.entry(person.to_owned()).or_insert((most, now));
        let since = now.saturating_duration_since(*at).as_secs_f64();
        *left = (*left + since * self.a_second).min(most);
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

/// How many connections of each person are open that last: those of notebooks, and of pages that change by themselves.
pub(crate) struct Connections {
    most: u32,
    open: Mutex<HashMap<String, u32>>,
}

/// One of a person's connections, which counts until this is dropped.
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
        let takes = |person, seconds: f64| {
            let now = start + Duration::from_secs_f64(seconds);
            (0..20).filter(|_| limits.take(person, now)).count()
        };
        assert_eq!(takes("ada", 0.0), 8);
        assert_eq!(takes("bob", 0.0), 8);
        assert_eq!(takes("ada", 1.5), 3);
        assert_eq!(takes("ada", 1000.0), 8);
    }
}
