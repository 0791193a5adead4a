//! The past of a course.

use baton_protocol::api;

/// One cell. Times are in seconds from any fixed moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PastCell {
    /// A number that identifies a person.
    pub person: u64,
    pub submitted: f64,
    /// When it took a slot.
    pub assigned: Option<f64>,
    pub started: Option<f64>,
    pub finished: Option<f64>,
    /// Whether it ended by itself: it was not stopped, and its worker was not lost.
    pub ended_itself: bool,
}

impl From<&api::PastCell> for PastCell {
    fn from(cell: &api::PastCell) -> Self {
        Self {
            person: cell.person.into(),
            submitted: seconds(cell.submitted_ms),
            assigned: cell.assigned_ms.map(seconds),
            started: cell.started_ms.map(seconds),
            finished: cell.finished_ms.map(seconds),
            ended_itself: cell.ended_itself,
        }
    }
}

/// Converts a time of the broker's history to that of a [`PastCell`].
#[must_use]
pub fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}
