//! What the runner of pools and the engine tell each other.

use crate::courses::Span;
use baton_protocol::proxy::Estimate;
use baton_scheduling::{pools::Waiting, queue::Offer};
use std::{collections::HashMap, sync::Arc};

/// A pool, as the engine needs it for placing cells and for what it tells those who wait.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolState {
    /// The names of its workers.
    pub workers: Vec<String>,
    /// What they are, once one has come.
    pub offer: Option<Arc<Offer>>,
    pub walltime_ms: u64,
    pub target_wait_ms: u64,
    /// Whether more of them could be started, now or when others leave.
    pub can_start: bool,
    /// Workers that are asked for and have not come.
    pub pending: u32,
    /// How long a start takes, by those that came.
    pub usual: Option<Estimate>,
    /// When the batch system expects the next one, in milliseconds since 1970.
    pub expected_ms: Option<i64>,
}

/// The runner tells the engine what the pools are, and asks what is to be done.
#[derive(Debug)]
pub struct PoolLook {
    pub pools: Vec<PoolState>,
    /// Which workers do not leave before when, although nobody uses them; in milliseconds since 1970.
    pub stays: HashMap<String, i64>,
}

/// The answer.
#[derive(Debug)]
pub struct PoolsPresent {
    /// Workers that are connected, and those that were not long ago, by name.
    pub workers: HashMap<String, SeenWorker>,
    /// Jobs that the workers of each pool run.
    pub running: Vec<u32>,
    pub waiting: Vec<Waiting>,
    /// Lessons that take place or begin soon.
    pub lessons: Vec<ComingLesson>,
    /// Of workers of no pool.
    pub other_slots: u32,
}

/// People of a course who come together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComingLesson {
    pub course: String,
    pub people: u32,
    pub span: Span,
    /// Of workers of no pool that can run their cells.
    pub other_slots: u32,
    /// The numbers of the pools that can run their cells.
    pub pools: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct SeenWorker {
    /// Since when, or since when it was.
    pub connected_ms: i64,
    pub is_connected: bool,
    pub offer: Arc<Offer>,
    pub slots: u32,
    pub draining: bool,
    /// Why no session starts there.
    pub failing: Option<String>,
}
