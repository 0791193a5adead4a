//! The messages between the runner of pools and the engine.

use crate::courses::Span;
use baton_protocol::{Requirement, proxy::Estimate};
use baton_scheduling::{
    pools::Waiting,
    queue::{Declared, Offer},
};
use std::{collections::HashMap, sync::Arc};

/// What the engine knows about a pool. It needs this to place cells, and for waiting people's messages.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolState {
    pub name: String,
    /// The names of its workers.
    pub workers: Vec<String>,
    /// What its last worker offered; unknown until one has connected.
    pub offer: Option<Arc<Offer>>,
    /// Whether a new worker would offer the same labels and environments: a worker is connected, or
    /// left a short time ago.
    pub offer_is_current: bool,
    /// What its settings say about its workers.
    pub declared: Arc<Declared>,
    pub walltime_ms: u64,
    pub target_wait_ms: u64,
    /// How long before a lesson its workers may have to be requested.
    pub ahead_ms: i64,
    /// Whether more workers can be started, now or when others end.
    pub can_start: bool,
    /// Workers that were requested and have not connected.
    pub pending: u32,
    /// The number of jobs that one of its workers runs at once.
    pub slots: u32,
    /// How long a start usually takes, from earlier starts.
    pub usual: Option<Estimate>,
    /// When the batch system expects to start the next one, in milliseconds since 1970.
    pub expected_ms: Option<i64>,
}

impl PoolState {
    /// Whether a worker that starts now is expected to meet it.
    pub(crate) fn will_meet(&self, requirement: &Requirement) -> bool {
        match &self.offer {
            Some(offer) if self.offer_is_current => offer.will_meet(requirement),
            _ => self.may_meet(requirement),
        }
    }

    /// Whether any new worker may meet it. Labels and environments are settings of a machine, which
    /// may have changed since the last worker left.
    pub(crate) fn may_meet(&self, requirement: &Requirement) -> bool {
        let is_setting = matches!(
            requirement,
            Requirement::Label { .. } | Requirement::Environment { .. }
        );
        let offered = self
            .offer
            .as_ref()
            .map(|offer| offer.will_meet(requirement));
        match offered {
            Some(offered) if offered || !is_setting => offered,
            _ => self.declared.may_meet(requirement),
        }
    }

    pub(crate) fn may_have_gpu(&self) -> bool {
        let offer = self.offer.as_ref();
        offer.map_or(self.declared.may_have_gpu(), |offer| offer.has_gpu())
    }
}

/// What the runner reports about the pools, to learn what they have to do.
#[derive(Debug)]
pub struct PoolLook {
    pub pools: Vec<PoolState>,
    /// By worker name: until when a worker stays even if it is idle, in milliseconds since 1970.
    pub stays: HashMap<String, i64>,
}

/// The engine's answer.
#[derive(Debug)]
pub struct PoolsPresent {
    /// Workers that are connected or were a short time ago, by name.
    pub workers: HashMap<String, SeenWorker>,
    /// How many jobs the workers of each pool run.
    pub running: Vec<u32>,
    pub waiting: Vec<Waiting>,
    /// For each pool, whether jobs wait or lessons come that its last worker did not fit, and the
    /// next one might: they require a label or an environment that it lacked.
    pub lacking: Vec<bool>,
    pub coming: ComingLessons,
}

/// Lessons that are in progress or begin soon.
#[derive(Debug)]
pub struct ComingLessons {
    pub lessons: Vec<ComingLesson>,
    /// The slots of workers that belong to no pool.
    pub other_slots: u32,
}

/// A lesson that is in progress or begins soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComingLesson {
    pub course: String,
    /// Its index in the timetable of the course, which may have equal lessons in several rooms.
    pub number: usize,
    pub people: u32,
    pub span: Span,
    /// The slots of workers outside all pools that can run its cells.
    pub other_slots: u32,
    /// The indexes of the pools that can run its cells.
    pub pools: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct SeenWorker {
    /// When it last connected.
    pub connected_ms: i64,
    pub is_connected: bool,
    pub offer: Arc<Offer>,
    pub slots: u32,
    pub draining: bool,
    /// Why no session starts there.
    pub failing: Option<String>,
}
