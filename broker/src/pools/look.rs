//! What the runner of pools and the engine tell each other.

use crate::courses::Span;
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
    /// Which workers do not leave before when, although nobody uses them; in milliseconds since 1970.
    pub(crate) stays: HashMap<String, i64>,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct PoolsPresent {
    /// Workers that are connected, and those that were not long ago, by name.
    pub(crate) workers: HashMap<String, SeenWorker>,
    /// Jobs that the workers of each pool run.
    pub(crate) running: Vec<u32>,
    pub(crate) waiting: Vec<Waiting>,
    /// Lessons that take place or begin soon.
    pub(crate) lessons: Vec<ComingLesson>,
    /// Of workers of no pool.
    pub(crate) other_slots: u32,
}

/// People of a course who come together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ComingLesson {
    pub(crate) course: String,
    pub(crate) people: u32,
    pub(crate) span: Span,
    /// Of workers of no pool that can run their cells.
    pub(crate) other_slots: u32,
    /// The numbers of the pools that can run their cells.
    pub(crate) pools: Vec<usize>,
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
