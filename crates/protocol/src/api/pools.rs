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
    /// Cells that one of its workers runs at once, as the last one said.
    #[serde(default)]
    pub slots: u32,
    /// How many workers it should have now.
    pub wanted: u32,
    /// Workers that take jobs.
    pub up: u32,
    /// Workers that are asked for and have not come.
    pub pending: u32,
    /// Connected workers that take no more jobs.
    #[serde(default)]
    pub leaving: u32,
    /// How many starts in a row have failed.
    pub failures: u32,
    /// After too many failures it starts nothing until somebody resumes it.
    pub paused: bool,
    /// Why the last start failed.
    pub last_failure: Option<String>,
    /// How long a start takes, by the last ones.
    pub start: Option<Estimate>,
    pub workers: Vec<PoolWorker>,
}

/// How many workers of a pool there should be, for a program that starts them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scale {
    pub pool: String,
    /// How many workers should take jobs. For a program that sets a number of replicas.
    pub wanted: u32,
    /// The same and those that are leaving. For a program that starts what is missing and counts every worker until its
    /// process has ended.
    pub processes: u32,
}

/// A worker joins a pool whose workers something else starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinPool {
    /// What the system that started it calls it, such as the name of a pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(max_length = 253)]
    pub called: Option<String>,
}

/// What the worker is from then on. Not `Debug`: it holds a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Joined {
    pub name: String,
    /// Of this worker and this life alone.
    pub token: String,
    /// After how long without a cell it leaves. Absent: it stays.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_exit_ms: Option<u64>,
    /// After how long it leaves in any case.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leaves_in_ms: Option<u64>,
}

/// A worker that a pool was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolWorker {
    pub name: String,
    /// What the batch system calls it.
    pub job: Option<String>,
    pub state: PoolWorkerState,
    pub submitted_ms: i64,
    /// When the batch system expects it to begin.
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
    /// It takes nothing more.
    Leaving,
    /// It was connected, and its job has not ended.
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
