//! The place of a waiting job in a play.

use crate::queue::{Precedence, WAITING_PER_USE};
use std::cmp::{Ordering, Reverse};

/// A lower value runs sooner. The ranks of all waiting jobs fall equally, so their order stays the same
/// until a run of their account ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SortKey {
    front: Reverse<Option<i64>>,
    rank: f64,
    /// Decides between equal ranks.
    turn: Turn,
}

/// When a job joined the queue, or began to wait for its account's next turn; equal times are ordered by the job's
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// 0 for jobs that wait since the beginning.
    pub(super) since: u64,
    pub(super) number: usize,
}

impl SortKey {
    pub(super) fn of(
        front: Option<i64>,
        precedence: &Precedence,
        submitted_ms: u64,
        turn: Turn,
    ) -> Self {
        // The rank that this job would have had at the beginning.
        let later = submitted_ms as f64 / WAITING_PER_USE;
        Self {
            front: Reverse(front),
            rank: precedence.rank() + later,
            turn,
        }
    }

    pub(super) fn front(&self) -> Option<i64> {
        self.front.0
    }

    /// The key of a job that is like this one, and has waited for its next turn if this one has.
    pub(super) fn of_alike(&self, other: Self) -> Self {
        let turn = Turn {
            since: self.turn.since,
            ..other.turn
        };
        match self.turn.since {
            0 => other,
            _ => Self { turn, ..*self },
        }
    }

    pub(super) fn is_before(&self, other: &Self) -> bool {
        let by_front = self.front.cmp(&other.front);
        let by_rank = by_front.then(self.rank.total_cmp(&other.rank));
        by_rank.then(self.turn.cmp(&other.turn)) == Ordering::Less
    }
}
