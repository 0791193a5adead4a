//! Connections that have not shown a token: few for each address, and for a short time. Later they
//! count for a person.
//!
//! In: the address of each connection, and when a request on it is admitted. Out: whether the
//! connection may continue. Connections above the limit wait for a while, so that a whole class can
//! connect at once.

use super::limits::{Connections, Counted};
use crate::web::api::ApiError;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// How long a connection may exist before a request is admitted, and how long a pending response may then take.
pub(super) const WITHIN: Duration = Duration::from_secs(5);
const SERVED: usize = 32;
const WAITING: usize = 256;

/// By address.
#[derive(Default)]
pub(super) struct Guests(Mutex<HashMap<IpAddr, Weak<Gate>>>);

struct Gate {
    served: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// A connection that was accepted as a guest.
#[derive(Clone)]
pub(crate) struct Guest {
    known: CancellationToken,
    permit: Arc<Mutex<Option<Permit>>>,
    /// For the person of its last request.
    counted: Arc<Mutex<Option<Counted>>>,
}

/// Held until a request is admitted or the connection ends.
struct Permit {
    _gate: Arc<Gate>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Guests {
    /// Returns `None` if too many connections of this address wait. Without an address, the peer is
    /// a process of this user.
    pub(super) async fn enter(&self, address: Option<IpAddr>) -> Option<Guest> {
        let known = CancellationToken::new();
        let permit = match address {
            None => {
                known.cancel();
                None
            }
            Some(address) => Some(self.permit(address).await?),
        };
        let permit = Arc::new(Mutex::new(permit));
        Some(Guest {
            known,
            permit,
            counted: Arc::default(),
        })
    }

    async fn permit(&self, address: IpAddr) -> Option<Permit> {
        let gate = self.gate(address);
        let all = Arc::clone(&gate.all).try_acquire_owned().ok()?;
        let served = Arc::clone(&gate.served).acquire_owned();
        let served = timeout(WITHIN, served).await.ok()?.ok()?;
        Some(Permit {
            _gate: gate,
            _permits: [all, served],
        })
    }

    fn gate(&self, address: IpAddr) -> Arc<Gate> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = gates.get(&address).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(Gate {
            served: Arc::new(Semaphore::new(SERVED)),
            all: Arc::new(Semaphore::new(SERVED + WAITING)),
        });
        gates.insert(address, Arc::downgrade(&gate));
        gate
    }
}

impl Guest {
    /// A request on this connection was admitted. From now on the connection counts for this person
    /// if there is one. A reverse proxy may send requests of several people on one connection.
    pub(super) fn admit(
        &self,
        person: Option<&str>,
        connections: &Arc<Connections>,
    ) -> Result<(), ApiError> {
        self.known.cancel();
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        drop(permit.take());
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.as_ref().map(Counted::person) != person {
            drop(counted.take());
            *counted = person.map(|person| connections.open(person)).transpose()?;
        }
        Ok(())
    }

    /// Resolves only if no request is admitted in time.
    pub(super) async fn is_late(&self) {
        if timeout(WITHIN, self.known.cancelled()).await.is_ok() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use tokio::{task::JoinSet, time::Instant};

    #[tokio::test(start_paused = true)]
    async fn one_address_has_few_guests_and_a_class_gets_in() {
        let guests = Arc::new(Guests::default());
        let connections = Arc::new(Connections::of_notebooks(1));
        let enter = |last| {
            let guests = Arc::clone(&guests);
            async move { guests.enter(Some(IpAddr::from([10, 0, 0, last]))).await }
        };
        let start = Instant::now();
        let mut silent = Vec::new();
        for _ in 0..SERVED {
            silent.push(enter(1).await.unwrap());
        }
        let mut waiting: JoinSet<_> = (0..WAITING).map(|_| enter(1)).collect();
        let gate = guests.gate(IpAddr::from([10, 0, 0, 1]));
        while gate.all.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(enter(1).await.is_none(), "more do not even wait");
        assert!(enter(2).await.is_some(), "others have their own");
        assert_eq!(start.elapsed(), Duration::ZERO);
        // Connections with a token make room for others at once.
        for guest in silent.drain(..16) {
            guest.admit(None, &connections).unwrap();
        }
        for _ in 0..16 {
            assert!(waiting.join_next().await.unwrap().unwrap().is_some());
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        silent[0].is_late().await;
        assert_eq!(start.elapsed(), WITHIN);

        // Sixty connections at once, each with a token.
        drop((silent, waiting));
        let mut class: JoinSet<_> = (0..60).map(|_| enter(1)).collect();
        while let Some(guest) = class.join_next().await {
            guest.unwrap().unwrap().admit(None, &connections).unwrap();
        }
        assert_eq!(start.elapsed(), WITHIN);
    }
}
