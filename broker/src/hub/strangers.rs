//! Limits queries about tokens that were never valid here. They may be wrong, many, and from one address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// In total.
const AT_ONCE: usize = 4;
/// For one address. A whole class may share an address; its people then wait for one another.
const AT_ONCE_OF_ADDRESS: usize = 2;

pub(super) struct Strangers {
    all: Semaphore,
    of: Mutex<HashMap<Option<IpAddr>, Arc<Semaphore>>>,
}

/// The right to make one query.
pub(super) struct Permit<'a> {
    of_address: Option<OwnedSemaphorePermit>,
    _of_all: Option<SemaphorePermit<'a>>,
    strangers: &'a Strangers,
    from: Option<IpAddr>,
}

impl Strangers {
    pub(super) fn new() -> Self {
        Self {
            all: Semaphore::new(AT_ONCE),
            of: Mutex::default(),
        }
    }

    /// Waits for the address first: a request that waits for its address takes no room from others.
    pub(super) async fn permit(&self, from: Option<IpAddr>) -> Permit<'_> {
        let mut permit = Permit {
            of_address: None,
            _of_all: None,
            strangers: self,
            from,
        };
        // The semaphores are never closed.
        permit.of_address = self.of_address(from).acquire_owned().await.ok();
        permit._of_all = self.all.acquire().await.ok();
        permit
    }

    fn of_address(&self, from: Option<IpAddr>) -> Arc<Semaphore> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Semaphore::new(AT_ONCE_OF_ADDRESS));
        Arc::clone(of.entry(from).or_insert_with(new))
    }

    #[cfg(test)]
    pub(super) fn has_room(&self, from: Option<IpAddr>) -> bool {
        self.of_address(from).available_permits() > 0 && self.all.available_permits() > 0
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut of = self
            .strangers
            .of
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(self.of_address.take());
        // Each request that uses it or waits for it also holds it.
        if of
            .get(&self.from)
            .is_some_and(|left| Arc::strong_count(left) == 1)
        {
            of.remove(&self.from);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn one_address_leaves_room_for_others_and_nothing_is_kept_of_it() {
        let strangers = Strangers::new();
        let mallory = Some("192.0.2.1".parse().unwrap());
        let ada = Some("192.0.2.2".parse().unwrap());
        let first = strangers.permit(mallory).await;
        let second = strangers.permit(mallory).await;
        assert!(strangers.permit(mallory).now_or_never().is_none());
        let hers = strangers.permit(ada).now_or_never().unwrap();
        drop((first, second));
        assert!(strangers.permit(mallory).now_or_never().is_some());
        drop(hers);
        assert!(strangers.of.lock().unwrap().is_empty());
    }
}
