//! Pools of workers, as the API shows them.

use crate::estimate::Estimate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A source of workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    pub pool: String,
    pub min: u32,
    pub max: u32,
    /// The number of cells that one of its workers runs at once, as the last worker reported.
    #[serde(default)]
    pub slots: u32,
    /// How many workers it should have now.
    pub wanted: u32,
    /// Workers that take jobs.
    pub up: u32,
    /// Workers that were requested and have not connected yet.
    pub pending: u32,
    /// Connected workers that take no more jobs.
    #[serde(default)]
    pub leaving: u32,
    /// The number of consecutive starts that failed.
    pub failures: u32,
    /// After too many failures the pool starts nothing until it is resumed by hand.
    pub paused: bool,
    /// Why the last start failed.
    pub last_failure: Option<String>,
    /// How long a start takes, judged by the last ones.
    pub start: Option<Estimate>,
    pub workers: Vec<PoolWorker>,
}

/// The number of workers that a pool should have, for a program that starts them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scale {
    pub pool: String,
    /// The number of workers that should take jobs. For a program that sets a number of replicas.
    pub wanted: u32,
    /// The same plus the workers that are leaving. For a program that starts missing workers and
    /// counts each one until its process has ended.
    pub processes: u32,
}

/// A worker joins a pool whose workers are started by another system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinPool {
    /// The worker's name in the system that started it, such as the name of a pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(max_length = 253)]
    pub called: Option<String>,
}

/// The identity of the worker from then on. Not `Debug`: it holds a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Joined {
    pub name: String,
    /// Valid for this worker only, until it ends.
    pub token: String,
    /// The worker leaves after this time without a cell. Absent: it stays.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_exit_ms: Option<u64>,
    /// The worker leaves after this time in any case.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leaves_in_ms: Option<u64>,
}

/// A worker that was requested from a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolWorker {
    pub name: String,
    /// The batch system's id for it.
    pub job: Option<String>,
    pub state: PoolWorkerState,
    pub submitted_ms: i64,
    /// When the batch system expects it to start.
    pub expected_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolWorkerState {
    /// It waits in the batch system.
    Queued,
    /// It has not connected yet.
    Starting,
    Connected,
    /// It takes no new jobs.
    Leaving,
    /// It was connected, and its batch job has not ended.
    Disconnected,
}

/// The commands of a pool as they would be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolTest {
    pub pool: String,
    pub commands: Vec<PoolCommand>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolCommand {
    /// `submit`, `status`, `cancel` or `expected`.
    pub name: String,
    /// The program first.
    pub arguments: Vec<String>,
    /// Why it cannot be run.
    pub problem: Option<String>,
}
