//! In which order sessions compute.

use crate::arbiter::SessionId;
use std::time::Duration;

/// Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// At the lowest level, whose guaranteed share is overdue.
    Overdue,
    /// By the GPU time that the cell has used; 0 is the highest level.
    Level(usize),
}

/// Orders sessions: by rank, then by recent use, then by the time waited. Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Priority {
    pub(crate) rank: Rank,
    pub(crate) used: f64,
    pub(crate) since: Duration,
}

pub(crate) fn best(priorities: impl Iterator<Item = (SessionId, Priority)>) -> Option<SessionId> {
    priorities
        .min_by(|(_, left), (_, right)| left.partial_cmp(right).expect("times are numbers"))
        .map(|(id, _)| id)
}
