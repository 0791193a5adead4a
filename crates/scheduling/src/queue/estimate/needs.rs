//! What a job requires of its worker, as numbers.

use crate::queue::{Job, Worker};
use baton_protocol::Requirement;

/// The time limit of a job; 0 without one.
pub(super) fn limit_ms(needs: &[Requirement]) -> u64 {
    let limits = needs.iter().map(|need| match need {
        Requirement::Time { ms } => *ms,
        _ => 0,
    });
    limits.max().unwrap_or(0)
}

/// Which workers meet a job's requirements other than time; `None`: all of them.
pub(super) fn fitting(job: &Job, workers: &[&Worker]) -> Option<Vec<bool>> {
    let is_lasting = |need: &&Requirement| !matches!(need, Requirement::Time { .. });
    job.needs.iter().find(is_lasting)?;
    let meets = |worker: &&Worker| {
        let mut needs = job.needs.iter().filter(is_lasting);
        needs.all(|need| worker.meets(need))
    };
    Some(workers.iter().map(meets).collect())
}
