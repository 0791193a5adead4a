//! Limits the requests per second of each person, and their open connections.
//!
//! Programs with the broker's own token belong to the operator and are not limited. Neither are
//! workers, because they send requests on behalf of all people.

use crate::{
    buckets::{Buckets, Rate},
    web::ApiError,
};
use baton_broker_queue::Identity;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::time::Instant;

/// A page loads several files at once, and a program may catch up after a pause.
const BURST_SECONDS: f64 = 4.0;

/// Limits the requests of each person.
pub(crate) struct Limits(Buckets<String>);

impl Limits {
    pub(crate) fn new(requests_a_second: u32) -> Self {
        let a_second = f64::from(requests_a_second);
        Self(Buckets::new(Rate {
            a_second,
            burst: a_second * BURST_SECONDS,
        }))
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
            self.0
                .charge(&person.to_owned(), Instant::now(), requests as f64);
        }
    }
}

pub(crate) fn limited(identity: &Identity) -> Option<&str> {
    identity.person().filter(|_| !identity.may_be_worker())
}

/// A notebook has one WebSocket, and others for requests about chunks and states.
const CONNECTIONS_OF_NOTEBOOK: u32 = 3;

/// Counts each person's connections: those of notebooks and live pages, or those of all requests.
pub(crate) struct Connections {
    what: &'static str,
    most: u32,
    open: Mutex<HashMap<String, u32>>,
}

/// One of a person's connections. It counts until it is dropped.
pub(crate) struct Counted {
    connections: Arc<Connections>,
    person: String,
}

impl Connections {
    pub(crate) fn of_notebooks(most: u32) -> Self {
        Self::new("connected notebooks and live pages", most)
    }

    /// For the connections of all requests, where each person may have this many notebooks.
    pub(crate) fn of_requests(notebooks: u32) -> Self {
        let most = notebooks.saturating_mul(CONNECTIONS_OF_NOTEBOOK);
        Self::new("open connections", most)
    }

    fn new(what: &'static str, most: u32) -> Self {
        Self {
            what,
            most,
            open: Mutex::default(),
        }
    }

    /// Counts one more, or refuses it.
    pub(crate) fn open(self: &Arc<Self>, person: &str) -> Result<Counted, ApiError> {
        let mut all = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = all.entry(person.to_owned()).or_default();
        if *open >= self.most {
            return Err(ApiError::TooManyConnections {
                what: self.what,
                most: self.most,
            });
        }
        *open += 1;
        Ok(Counted {
            connections: Arc::clone(self),
            person: person.to_owned(),
        })
    }
}

impl Counted {
    pub(super) fn person(&self) -> &str {
        &self.person
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let open = self.connections.open.lock();
        let mut all = open.unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = all.get_mut(&self.person) {
            *open -= 1;
            if *open == 0 {
                all.remove(&self.person);
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
