//! Pools: batch systems that give workers, and workers that something else starts.
//!
//! In: what the engine knows of waiting cells and of workers, and what the batch systems say. Out: jobs in the batch
//! systems, each of which starts one worker with a token of its own; for an external pool, the number of workers that
//! it should have, and a token for each worker that joins. [`baton_scheduling::pools`] decides how many.
//!
//! Each worker that is asked for is a row in the store before its job exists, so a broker that was killed finds its
//! workers again by the ids of their jobs. Only the leader runs pools.
//!
//! **Invariant:** the broker ends no worker that has come, unless sessions do not start there.

mod command;
mod external;
mod known;
mod lessons;
mod lives;
mod orders;
mod runner;
mod settings;
mod template;
mod tokens;

pub(crate) use lessons::Lessons;
pub(crate) use runner::{Runner, run};
pub use settings::PoolSettings;
pub(crate) use tokens::PREFIX as TOKEN_PREFIX;

use baton_broker_queue::NotDone;
use baton_protocol::api::{JoinPool, Joined, Pool, PoolTest};
use settings::{Commands, Provider};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// What people and workers ask of a pool.
pub(crate) enum Request {
    Resume(String, oneshot::Sender<Option<Pool>>),
    Test(String, oneshot::Sender<Option<PoolTest>>),
    /// A worker asks for a token of its own.
    Join(
        String,
        JoinPool,
        oneshot::Sender<Option<Result<Joined, NotDone>>>,
    ),
}

/// For pages and the API.
#[derive(Clone)]
pub(crate) struct Pools {
    pub(crate) names: Arc<[String]>,
    /// Empty until it is known how many workers each pool should have.
    pub(crate) status: watch::Receiver<Arc<Vec<Pool>>>,
    pub(crate) requests: mpsc::Sender<Request>,
}

impl Pools {
    pub(crate) fn all(&self) -> Arc<Vec<Pool>> {
        Arc::clone(&self.status.borrow())
    }
}
