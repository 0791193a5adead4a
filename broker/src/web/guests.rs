//! Connections that have not shown a token: few for each address, and for a short time. Later they
//! count for a person.
//!
//! In: the address of each connection, when a request on it begins and ends, and when one is admitted.
//! Out: whether the connection may continue.
//!
//! Many people may share an address: a class behind one router, or all notebooks of a JupyterHub. So one
//! of them who opens many connections and sends nothing must not keep the others out. If an address has no
//! place left, its oldest connection without a complete request gives way. A client with a token sends its
//! request at once. If all connections have sent one, the next waits for a while, so that a whole class can
//! connect at once.

use super::limits::{Connections, Counted};
use crate::web::ApiError;
use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// How long a connection may exist before a request is admitted, and how long a pending response may then take.
pub(super) const WITHIN: Duration = Duration::from_secs(5);
/// The connections of one address that are served.
const SERVED: usize = 128;
const WAITING: usize = 256;

/// By address.
#[derive(Default)]
pub(super) struct Guests(Mutex<HashMap<IpAddr, Weak<Gate>>>);

struct Gate {
    /// The oldest is first.
    places: Mutex<VecDeque<Arc<Place>>>,
    /// A place is free, or may now be taken.
    changed: Notify,
    waiting: Semaphore,
}

/// The place of one connection.
#[derive(Default)]
struct Place {
    /// Whether the broker is answering its request.
    asks: AtomicBool,
    gives_way: CancellationToken,
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
    gate: Arc<Gate>,
    place: Arc<Place>,
}

/// How the time of a guest has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TimeIsUp {
    /// Its address has newer connections.
    GivesWay,
    IsLate,
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
            Some(address) => Some(self.gate(address).enter().await?),
        };
        let permit = Arc::new(Mutex::new(permit));
        Some(Guest {
            known,
            permit,
            counted: Arc::default(),
        })
    }

    fn gate(&self, address: IpAddr) -> Arc<Gate> {
        let mut gates = lock(&self.0);
        if let Some(gate) = gates.get(&address).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(Gate {
            places: Mutex::default(),
            changed: Notify::new(),
            waiting: Semaphore::new(WAITING),
        });
        gates.insert(address, Arc::downgrade(&gate));
        gate
    }
}

impl Gate {
    async fn enter(self: Arc<Self>) -> Option<Permit> {
        let place = Arc::new(Place::default());
        if !self.take(&place) {
            let _waits = self.waiting.try_acquire().ok()?;
            let taken = async {
                loop {
                    let changed = self.changed.notified();
                    if self.take(&place) {
                        return;
                    }
                    changed.await;
                }
            };
            timeout(WITHIN, taken).await.ok()?;
        }
        Some(Permit { gate: self, place })
    }

    /// Takes a free place, or that of the oldest connection without a request.
    fn take(&self, place: &Arc<Place>) -> bool {
        let mut places = lock(&self.places);
        if places.len() >= SERVED {
            let is_silent = |place: &Arc<Place>| !place.asks.load(Ordering::Relaxed);
            let oldest = places.iter().position(is_silent);
            let Some(oldest) = oldest.and_then(|at| places.remove(at)) else {
                return false;
            };
            oldest.gives_way.cancel();
        }
        places.push_back(Arc::clone(place));
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        lock(&self.gate.places).retain(|place| !Arc::ptr_eq(place, &self.place));
        self.gate.changed.notify_one();
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
        drop(lock(&self.permit).take());
        let mut counted = lock(&self.counted);
        if counted.as_ref().map(Counted::person) != person {
            drop(counted.take());
            *counted = person.map(|person| connections.open(person)).transpose()?;
        }
        Ok(())
    }

    /// Whether the broker is answering a request on this connection.
    pub(super) fn asks(&self, asks: bool) {
        if let Some(permit) = &*lock(&self.permit) {
            permit.place.asks.store(asks, Ordering::Relaxed);
            if !asks {
                permit.gate.changed.notify_one();
            }
        }
    }

    /// Resolves only if no request is admitted in time, or if the connection must give way before.
    pub(super) async fn time_is_up(&self) -> TimeIsUp {
        let place = lock(&self.permit)
            .as_ref()
            .map(|permit| Arc::clone(&permit.place));
        let gives_way = async {
            match place {
                Some(place) => place.gives_way.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.known.cancelled() => std::future::pending().await,
            () = gives_way => TimeIsUp::GivesWay,
            () = tokio::time::sleep(WITHIN) => TimeIsUp::IsLate,
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use tokio::{task::JoinSet, time::Instant};

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_keep_nobody_with_the_same_address_out() {
        let guests = Guests::default();
        let start = Instant::now();
        let mut silent = Vec::new();
        for _ in 0..SERVED {
            silent.push(guests.enter(address(1)).await.unwrap());
        }
        silent[0].asks(true);
        let newer = guests.enter(address(1)).await.unwrap();
        assert_eq!(silent[1].time_is_up().await, TimeIsUp::GivesWay);
        assert!(guests.enter(address(2)).await.is_some());
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(silent[0].time_is_up().await, TimeIsUp::IsLate);
        assert_eq!(newer.time_is_up().await, TimeIsUp::IsLate);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_whose_requests_are_answered_keep_their_places_and_a_class_gets_in() {
        let guests = Arc::new(Guests::default());
        let connections = Arc::new(Connections::of_notebooks(1));
        let enter = || {
            let guests = Arc::clone(&guests);
            async move { guests.enter(address(1)).await }
        };
        let start = Instant::now();
        let mut asking = Vec::new();
        for _ in 0..SERVED {
            let guest = enter().await.unwrap();
            guest.asks(true);
            asking.push(guest);
        }
        let mut waiting: JoinSet<_> = (0..WAITING).map(|_| enter()).collect();
        let gate = guests.gate(address(1).unwrap());
        while gate.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(enter().await.is_none(), "more do not even wait");
        assert_eq!(start.elapsed(), Duration::ZERO);
        // Connections with a token make room for others at once.
        for guest in asking.drain(..16) {
            guest.admit(None, &connections).unwrap();
        }
        for _ in 0..16 {
            let guest = waiting.join_next().await.unwrap().unwrap().unwrap();
            guest.asks(true);
            asking.push(guest);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);

        // Three hundred connections at once, each with a token.
        drop((asking, waiting));
        let mut class: JoinSet<_> = (0..300)
            .map(|_| {
                let entering = enter();
                let connections = Arc::clone(&connections);
                async move {
                    let guest = entering.await.unwrap();
                    guest.asks(true);
                    guest.admit(None, &connections).unwrap();
                }
            })
            .collect();
        while let Some(entered) = class.join_next().await {
            entered.unwrap();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
