//! How much a person's token may ask in a second.
//!
//! Programs that hold the broker's own token are the operator's, and are not limited.

use super::{Caller, Shared};
use crate::api::ApiError;
use axum::{
    Extension,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
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

    fn take(&self, person: &str, now: Instant) -> bool {
        let most = self.a_second * BURST_SECONDS;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = buckets.entry(person.to_owned()).or_insert((most, now));
        let since = now.saturating_duration_since(*at).as_secs_f64();
        *left = (*left + since * self.a_second).min(most);
        *at = now;
        let enough = *left >= 1.0;
        if enough {
            *left -= 1.0;
        }
        enough
    }
}

pub(super) async fn limit(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let limited = caller
        .identity
        .person()
        .is_some_and(|person| !shared.limits.take(person, Instant::now()));
    if limited {
        shared.metrics.limited();
        return ApiError::TooOften.into_response();
    }
    next.run(request).await
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
