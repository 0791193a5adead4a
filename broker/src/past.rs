//! The past of courses, without names.

use baton_broker_store::HistoryRow;
use baton_protocol::{Outcome, api::PastCell};
use std::collections::HashMap;

/// Replaces people by numbers.
pub(crate) fn cells(rows: Vec<HistoryRow>) -> Vec<PastCell> {
    let mut numbers = HashMap::new();
    let cell = |row: HistoryRow| {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        PastCell {
            ended_itself: ended_itself(row.outcome),
            person: *numbers.entry(row.owner).or_insert(next),
            submitted_ms: row.submitted_ms,
            assigned_ms: row.assigned_ms,
            started_ms: row.started_ms,
            finished_ms: row.finished_ms,
        }
    };
    rows.into_iter().map(cell).collect()
}

/// Whether the cell ended by itself: it was neither stopped nor lost.
fn ended_itself(outcome: Option<Outcome>) -> bool {
    matches!(
        outcome,
        Some(Outcome::Ok | Outcome::Error | Outcome::OutOfMemory)
    )
}
