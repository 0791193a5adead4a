//! What a waiting job's proxy and pages show.

use super::Now;
use baton_protocol::{
    JobId,
    api::MovedBack,
    proxy::{Estimate, ToProxy, WaitingReason},
};
use baton_scheduling::queue::{ShownPosition, Spread};

/// An estimate that moves by less than this counts as unchanged.
const SAME_ESTIMATE_MS: u64 = 2000;

/// The queue position of a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub position: u32,
    /// The last position that the job is likely to get.
    pub last_position: u32,
    pub moved_back: Option<MovedBack>,
    pub(super) shown_position: ShownPosition,
    pub reason: WaitingReason,
    pub(super) gpu: bool,
    /// In milliseconds since 1970.
    pub(super) starts_at: Option<Spread>,
    pub message: Option<String>,
}

impl Waiting {
    pub(super) fn message(&self, job: JobId, now: Now) -> ToProxy {
        ToProxy::QueuePosition {
            job,
            position: self.position,
            last_position: self.last_position,
            moved_back: self.moved_back,
            waiting: self.reason.clone(),
            gpu: self.gpu,
            estimate: self.estimate(now.unix_ms),
            message: self.message.clone(),
        }
    }

    pub fn estimate(&self, now_ms: i64) -> Option<Estimate> {
        let now_ms = u64::try_from(now_ms).unwrap_or(0);
        let starts = self.starts_at?.map(|ms| ms.saturating_sub(now_ms));
        Some(Estimate {
            lower_ms: starts.lower,
            middle_ms: starts.middle,
            upper_ms: starts.upper,
        })
    }

    /// Whether a person would notice the difference.
    pub(super) fn differs(&self, shown: &Self) -> bool {
        let moved = match (self.starts_at, shown.starts_at) {
            (Some(one), Some(other)) => {
                let far = |one: u64, other: u64| one.abs_diff(other) > SAME_ESTIMATE_MS;
                far(one.lower, other.lower)
                    || far(one.middle, other.middle)
                    || far(one.upper, other.upper)
            }
            (one, other) => one.is_some() != other.is_some(),
        };
        moved
            || !self.shown_position.is_same(&shown.shown_position)
            || self.moved_back != shown.moved_back
            || self.reason != shown.reason
            || self.gpu != shown.gpu
            || self.message != shown.message
    }
}
