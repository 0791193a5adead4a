//! Pools: sources of workers. Most are batch systems; workers of external pools are started by
//! something else.
//!
//! In: what the engine knows about waiting cells and workers, and answers of batch systems. Out:
//! jobs in the batch systems, which each start one worker with its own token. For an external pool:
//! the desired number of workers, and a token for each worker that joins.
//! [`baton_scheduling::pools`] computes the numbers.
//!
//! Each requested worker has a row in the store before its job exists. So a broker that was killed
//! finds its workers again by the ids of their jobs. Only the leader runs pools.
//!
//! **Invariant:** the broker ends no worker that has connected, unless it fails to start sessions.

mod asked;
mod batch;
mod batch_system;
mod command;
mod external;
mod lessons;
mod managed_pool;
mod managed_worker;
mod offers;
mod runner;
mod settings;
mod template;
mod tokens;

pub(crate) use lessons::Lessons;
pub use offers::OffersSection;
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
    Resume(String, oneshot::Sender<Option<Pool>>),
    Test(String, oneshot::Sender<Option<PoolTest>>),
    /// A worker requests its own token.
    Join(
        String,
        JoinPool,
        oneshot::Sender<Option<Result<Joined, NotDone>>>,
    ),
}

/// Access to the pools for pages and the API.
#[derive(Clone)]
pub(crate) struct Pools {
    pub(crate) names: Arc<[String]>,
    pub(crate) scaling: Arc<[Scaling]>,
    pub(crate) lessons: Lessons,
    /// Empty until the desired number of workers is known for each pool.
    pub(crate) status: watch::Receiver<Arc<Vec<Pool>>>,
    pub(crate) requests: mpsc::Sender<Request>,
}

impl Pools {
    pub(crate) fn all(&self) -> Arc<Vec<Pool>> {
        Arc::clone(&self.status.borrow())
    }
}
