//! How a worker leaves: its cells end, their results are sent, then its sessions end.
//!
//! ```text
//! accepting ──asked──> finishing ──all cells ended──> handing over ──everything stored──> gone
//!                          └──asked again, or late──> ending ────────────────┘
//! ```

use crate::life_end::LifeEnd;
use std::time::Duration;
use tokio::time::Instant;

/// How long the broker may take to store the last events of cells that the worker ended.
const LAST_WORD: Duration = Duration::from_secs(3);
/// The same if deferred state of earlier cells has not been sent yet.
const HANDOVER_GRACE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) enum Leave {
    #[default]
    NotAsked,
    /// Running cells continue, at most until this time.
    Finishing(Option<Instant>),
    /// No cell runs any more. Results must reach the broker before this time.
    HandingOver(Instant),
}

impl Leave {
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, Self::NotAsked)
    }

    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::HandingOver(_))
    }

    /// Running cells have this time, but at most until the machine is gone.
    pub(super) fn finishing(grace: Option<Duration>, end: Option<&LifeEnd>) -> Self {
        match grace {
            Some(grace) => tracing::info!("Leaving: running cells have {} s", grace.as_secs()),
            None => tracing::info!("Leaving when the running cells have ended"),
        }
        let until = grace.and_then(|grace| Instant::now().checked_add(grace));
        let end = end.map(LifeEnd::cells_end_at);
        Self::Finishing(until.into_iter().chain(end).min())
    }

    /// The running cells were stopped. `defers`: deferred state of earlier cells has not been sent yet.
    pub(super) fn handing_over(defers: bool) -> Self {
        let grace = if defers { HANDOVER_GRACE } else { LAST_WORD };
        Self::HandingOver(Instant::now() + grace)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::NotAsked => None,
            Self::Finishing(until) => *until,
            Self::HandingOver(until) => Some(*until),
        }
    }
}
