//! When a job is likely to start.

use serde::{Deserialize, Serialize};

/// In how many milliseconds from now a job starts: one of ten before `lower`, one of ten after `upper`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Estimate {
    pub lower_ms: u64,
    pub middle_ms: u64,
    pub upper_ms: u64,
}
