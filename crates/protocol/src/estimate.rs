//! When a job is likely to start.

use serde::{Deserialize, Serialize};

/// The time until a job starts: before `lower` in one of ten cases, after `upper` in one of ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Estimate {
    pub lower_ms: u64,
    pub middle_ms: u64,
    pub upper_ms: u64,
}
