//! What happened in a course.

use baton_protocol::api;

/// One cell; times are in seconds since any one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PastCell {
    /// A number that stands for a person.
    pub person: u64,
    pub submitted: f64,
    /// When it took a slot.
    pub assigned: Option<f64>,
    pub started: Option<f64>,
    pub finished: Option<f64>,
    /// It ended by itself: it was not stopped, and its worker was not lost.
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

/// A moment of the broker's history, as a [`PastCell`] has it.
#[must_use]
pub fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}
