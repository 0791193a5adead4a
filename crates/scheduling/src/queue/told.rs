//! The place in line as people are told it: as a range where others are likely to overtake, and never further back
//! without a reason.

use crate::queue::{Job, ahead::because};
use baton_protocol::api::{AheadBecause, MovedBack};
use std::collections::{BTreeMap, BTreeSet};

/// What was told last of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldPlace {
    /// 1 = next in line.
    pub place: u32,
    /// The place that it hardly falls behind.
    pub last: u32,
    /// The best place that was told, and when, in the caller's milliseconds.
    best: (u32, u64),
}

impl ToldPlace {
    /// `overtakers`: more people than so many rarely overtake; `None`: nobody knows.
    #[must_use]
    pub fn next(before: Option<Self>, place: u32, overtakers: Option<u32>, now_ms: u64) -> Self {
        let last = place.saturating_add(overtakers.unwrap_or(0));
        match before {
            None => Self {
                place,
                last,
                best: (place, now_ms),
            },
            Some(before) if place > before.place => Self {
                place,
                last,
                best: before.best,
            },
            // Nobody came, so that the end of the range has no reason to move back.
            Some(before) => Self {
                place,
                last: last.min(before.last).max(place),
                best: match place <= before.best.0 {
                    true => (place, now_ms),
                    false => before.best,
                },
            },
        }
    }

    /// It reads the same.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.place, self.last) == (other.place, other.last)
    }

    /// Why it is further back than it once was told to be. `line` is that of [`crate::queue::in_line`], in which it has this
    /// place.
    #[must_use]
    pub fn moved_back(&self, line: &[&Job], now_ms: u64) -> Option<MovedBack> {
        let (best, at_ms) = self.best;
        if self.place <= best {
            return None;
        }
        let own = self.place as usize - 1;
        let (job, ahead) = (line.get(own)?, line.get(..own)?);
        let since_ms = now_ms.saturating_sub(at_ms);
        let came = |other: &&&Job| other.standing.waited_ms <= since_ms;
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
        // Those who had been in line before: they were let in again, or others' reasons to stand behind ended.
        moved.or_else(|| {
            let other = ahead.last()?;
            Some(MovedBack {
                people: self.place - best,
                because: because(other, job),
            })
        })
    }
}
