//! Which session has priority, and when a lease is preempted.

use crate::arbiter::{
    Settings,
    session::{Lease, Session},
};
use std::{cmp::Ordering, time::Duration};

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

/// The level of the session's cell, by the GPU time that it has used; 0 is the highest.
pub(crate) fn level(levels: &[Duration], session: &Session) -> usize {
    let is_past = |limit: &&Duration| session.attained >= **limit;
    levels.iter().filter(is_past).count()
}

impl Settings {
    pub(crate) fn lowest(&self) -> usize {
        self.levels.len()
    }

    pub(crate) fn level(&self, session: &Session) -> usize {
        level(&self.levels, session)
    }

    /// GPU time until the session's cell falls to the next level.
    pub(crate) fn until_next_level(&self, session: &Session) -> Option<Duration> {
        let limit = self.levels.get(self.level(session))?;
        Some(*limit - session.attained)
    }

    /// The session is ended at this time unless it has drained and its memory has moved.
    pub(crate) fn deadline(&self, session: &Session) -> Option<Duration> {
        match session.lease {
            Lease::Ending => None,
            Lease::Draining { deadline, .. } => Some(deadline),
            Lease::Idle | Lease::Waiting { .. } | Lease::Holding { .. } => {
                let move_time = Duration::from_secs(session.bytes / self.slowest_move);
                Some(session.moves_since()? + self.drain_limit + move_time)
            }
        }
    }

    /// Whether `holder` must give up its lease for `rival`.
    pub(crate) fn yields(
        &self,
        holder: &Session,
        priority: Priority,
        rival: Priority,
        now: Duration,
    ) -> bool {
        let Lease::Holding {
            since,
            level,
            guaranteed,
            ..
        } = holder.lease
        else {
            return false;
        };
        let held = now - since;
        if held < holder.swap_time.mul_f64(self.swap_floor) {
            return false;
        }
        if guaranteed && held < self.guaranteed_slice {
            return rival.rank == Rank::Level(0) && held >= self.guaranteed_floor;
        }
        let has_had_its_quantum = self.level(holder) > level || held >= self.slice;
        match rival.rank.cmp(&Rank::Level(self.level(holder))) {
            Ordering::Less => true,
            Ordering::Equal => has_had_its_quantum && rival.used <= priority.used,
            Ordering::Greater => false,
        }
    }
}
