//! The queue position as people see it: a range if others are likely to overtake. It never moves
//! back without a reason.

use crate::queue::{Job, ahead::because};
use baton_protocol::api::{AheadBecause, MovedBack};
use std::collections::{BTreeMap, BTreeSet};

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

    /// Why it is further back than an earlier position. `line` is the result of
    /// [`crate::queue::in_queue_order`], in which the job has this position.
    #[must_use]
    pub fn moved_back(&self, line: &[&Job], now_ms: u64) -> Option<MovedBack> {
        let (best, at_ms) = self.best;
        if self.position <= best {
            return None;
        }
        let own = self.position as usize - 1;
        let (job, ahead) = (line.get(own)?, line.get(..own)?);
        let since_ms = now_ms.saturating_sub(at_ms);
        let came = |other: &&&Job| other.precedence.waited_ms <= since_ms;
        let mut people: BTreeMap<AheadBecause, BTreeSet<&str>> = BTreeMap::new();
        for other in ahead.iter().filter(came) {
            let owners = people.entry(because(other, job)).or_default();
            owners.insert(&other.owner);
        }
        let most = people.iter().max_by_key(|(_, owners)| owners.len());
        let moved = most.map(|(because, owners)| MovedBack {
            people: u32::try_from(owners.len()).unwrap_or(u32::MAX),
            because: *because,
        });
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
