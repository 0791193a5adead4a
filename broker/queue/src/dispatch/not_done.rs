//! Why a command of a person is refused.

use crate::courses::Wrong;
use baton_protocol::JobId;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    #[error("There is no cell {0} that you can see")]
    UnknownJob(JobId),
    #[error("There is no worker {0}")]
    UnknownWorker(String),
    #[error("There is no pool {0}")]
    UnknownPool(String),
    #[error("Workers cannot join pool {0}: the broker starts them")]
    NotExternal(String),
    #[error("Pool {pool} is full: its maximum is {max}")]
    PoolFull { pool: String, max: u32 },
    #[error("There is no course {0} that you can see")]
    UnknownCourse(String),
    #[error("No additional GPU time is granted to {0}")]
    NoAllowance(String),
    #[error("Only staff of its course may do this")]
    StaffOnly,
    #[error("Only admins may do this: workers serve all courses")]
    AdminsOnly,
    #[error("The cell has ended")]
    Over,
    #[error("The cell is no longer waiting")]
    NotWaiting,
    #[error("{0} is shutting down: it was stopped on its own machine")]
    Leaving(String),
    #[error(transparent)]
    Wrong(#[from] Wrong),
}
