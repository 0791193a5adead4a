//! What the runner of pools and the engine tell each other.

use baton_protocol::proxy::Estimate;
use baton_scheduling::{pools::Waiting, queue::Offer};
use std::{collections::HashMap, sync::Arc};

/// A pool, as the engine needs it for placing cells and for what it tells those who wait.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PoolState {
    /// The names of its workers.
    pub(crate) workers: Vec<String>,
    /// What they are, once one has come.
    pub(crate) offer: Option<Arc<Offer>>,
    pub(crate) walltime_ms: u64,
    pub(crate) target_wait_ms: u64,
    /// Whether more of them could be started, now or when others leave.
    pub(crate) can_start: bool,
    /// Workers that are asked for and have not come.
    pub(crate) pending: u32,
    /// How long a start takes, by those that came.
    pub(crate) usual: Option<Estimate>,
    /// When the batch system expects the next one, in milliseconds since 1970.
    pub(crate) expected_ms: Option<i64>,
}

/// The runner tells the engine what the pools are, and asks what is to be done.
#[derive(Debug)]
pub(crate) struct PoolLook {
    pub(crate) pools: Vec<PoolState>,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct PoolsPresent {
    /// Workers that are connected, and those that were not long ago, by name.
    pub(crate) workers: HashMap<String, SeenWorker>,
    /// Jobs that the workers of each pool run.
    pub(crate) running: Vec<u32>,
    pub(crate) waiting: Vec<Waiting>,
}

#[derive(Debug, Clone)]
pub(crate) struct SeenWorker {
    /// Since when, or since when it was.
    pub(crate) connected_ms: i64,
    pub(crate) is_connected: bool,
    pub(crate) offer: Arc<Offer>,
    pub(crate) slots: u32,
    pub(crate) draining: bool,
    /// Why no session starts there.
    pub(crate) failing: Option<String>,
}
