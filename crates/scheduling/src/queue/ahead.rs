//! Why other jobs are ahead.

use super::{Job, Precedence, in_queue_order};
use baton_protocol::{JobId, api::AheadBecause};

/// The waiting jobs ahead of this one, in queue order.
#[must_use]
pub fn ahead_of(jobs: &[Job], job: JobId) -> Vec<(JobId, AheadBecause)> {
    let line = in_queue_order(jobs);
    let Some(place) = line.iter().position(|other| other.job == job) else {
        return Vec::new();
    };
    let ahead = line[..place].iter();
    ahead
        .map(|other| (other.job, because(other, line[place])))
        .collect()
}

/// The first difference without which the order would be reversed.
pub(crate) fn because(ahead: &Job, behind: &Job) -> AheadBecause {
    if behind.held && !ahead.held {
        return AheadBecause::Held;
    }
    if behind.paused && !ahead.paused {
        return AheadBecause::CoursePaused;
    }
    if ahead.front > behind.front {
        return AheadBecause::MovedToFront;
    }
    let (ahead, behind) = (ahead.precedence, behind.precedence);
    let turns = |without: fn(&mut Precedence)| {
        let (mut ahead, mut behind) = (ahead, behind);
        without(&mut ahead);
        without(&mut behind);
        ahead.rank().total_cmp(&behind.rank())
    };
    if turns(|precedence| precedence.boost = 1.0).is_gt() {
        AheadBecause::Deadline
    // Two jobs submitted in the same millisecond have waited equally long.
    } else if !ahead.low_priority
        && behind.low_priority
        && turns(|precedence| precedence.low_priority = false).is_ge()
    {
        AheadBecause::LowPriority
    } else if turns(|precedence| precedence.used_ms = 0.0).is_gt() {
        AheadBecause::UsedLess
    } else {
        AheadBecause::WaitedLonger
    }
}
