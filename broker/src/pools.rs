//! Pools: sources of workers. Most are batch systems; workers of external pools are started by
//! something else.
//!
//! In: what the engine knows about waiting cells and workers, and answers of batch systems. Out:
//! jobs in the batch systems, which each start one worker with its own token. For an external pool:
//! the desired number of workers, and a token for each worker that joins.
//! [`baton_scheduling::pools`] computes the numbers.
//!
//! The [coordinator] decides once a second how many workers each pool needs, and instructs the pools.
//! Each pool has its own [loop](pool_loop), which reports to the coordinator. So a batch system that
//! does not answer delays only its own pool.
//!
//! Each requested worker has a row in the store before its job exists. So a broker that was killed
//! finds its workers again by the ids of their jobs. Only the leader runs pools.
//!
//! **Invariant:** the broker ends no worker that has connected, unless it fails to start sessions.

mod asked;
mod batch;
mod batch_system;
mod command;
mod coordinator;
mod external;
mod lessons;
mod managed_pool;
mod managed_worker;
mod offers;
mod pool_loop;
mod removed;
mod runner;
mod settings;
mod template;
mod tokens;

pub(crate) use lessons::Lessons;
pub use offers::OffersSection;
pub(crate) use pool_loop::{Common, Seat};
pub(crate) use runner::{Runner, run};
pub use settings::PoolSettings;
pub(crate) use tokens::PREFIX as TOKEN_PREFIX;

use baton_broker_queue::NotDone;
use baton_protocol::api::{JoinPool, Joined, Pool, PoolTest};
use baton_scheduling::pools::Scaling;
use settings::{Commands, Provider};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// A request of a person or a worker to a pool.
pub(crate) enum Request {
    Resume(oneshot::Sender<Pool>),
    Test(oneshot::Sender<PoolTest>),
    /// A worker requests its own token.
    Join(JoinPool, oneshot::Sender<Result<Joined, NotDone>>),
}

/// Access to one pool for pages and the API.
pub(crate) struct Handle {
    pub(crate) name: String,
    /// `None` until the desired number of its workers is known.
    pub(crate) status: watch::Receiver<Option<Pool>>,
    pub(crate) requests: mpsc::Sender<Request>,
}

/// Access to the pools for pages and the API, in the order of the settings.
#[derive(Clone)]
pub(crate) struct Pools {
    pub(crate) handles: Arc<[Handle]>,
    pub(crate) scaling: Arc<[Scaling]>,
    pub(crate) lessons: Lessons,
}

impl Pools {
    /// Empty until the desired number of workers is known for each pool.
    pub(crate) fn all(&self) -> Vec<Pool> {
        let known = self.handles.iter();
        let known: Option<_> = known.map(|pool| pool.status.borrow().clone()).collect();
        known.unwrap_or_default()
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Handle> {
        self.handles.iter().find(|pool| pool.name == name)
    }
}
