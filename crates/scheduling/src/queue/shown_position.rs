//! The queue position as people see it: a range if others are likely to overtake. It never moves
//! back without a reason.

use crate::queue::{Job, JobsAhead, ahead::because};
use baton_protocol::api::MovedBack;

/// The last position that was shown for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownPosition {
    /// 1 = next.
    pub position: u32,
    /// The largest position that it is likely to have.
    pub last: u32,
    /// The best position that was shown, and when, in milliseconds of the caller's clock.
    best: (u32, u64),
}

impl ShownPosition {
    /// `overtakers`: the most people who are likely to overtake; `None` if unknown.
    #[must_use]
    pub fn next(before: Option<Self>, position: u32, overtakers: Option<u32>, now_ms: u64) -> Self {
        let last = position.saturating_add(overtakers.unwrap_or(0));
        match before {
            None => Self {
                position,
                last,
                best: (position, now_ms),
            },
            Some(before) if position > before.position => Self {
                position,
                last,
                best: before.best,
            },
            // No job got ahead, so the end of the range has no reason to move back.
            Some(before) => Self {
                position,
                last: last.min(before.last).max(position),
                best: match position <= before.best.0 {
                    true => (position, now_ms),
                    false => before.best,
                },
            },
        }
    }

    /// Whether both are displayed the same.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.position, self.last) == (other.position, other.last)
    }

    /// Why the job is further back than at an earlier position. `ahead` are the jobs ahead of this position.
    #[must_use]
    pub fn moved_back(&self, job: &Job, ahead: &JobsAhead<'_>, now_ms: u64) -> Option<MovedBack> {
        let (best, at_ms) = self.best;
        if self.position <= best {
            return None;
        }
        let came = ahead.people(job, now_ms.saturating_sub(at_ms));
        let most = came.into_iter().max_by_key(|(_, people)| *people);
        let moved = most.map(|(because, people)| MovedBack { people, because });
        // All of them waited before: their holds or pauses have ended.
        moved.or_else(|| {
            let other = ahead.last()?;
            Some(MovedBack {
                people: self.position - best,
                because: because(other, job),
            })
        })
    }
}
