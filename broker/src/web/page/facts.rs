//! Everything that pages show of the present, from a single moment, and of the past. Only what the caller may see,
//! except for counts.

use super::{Facts, time::Zone};
use crate::{
    clock::unix_ms,
    engine::Event,
    minutes,
    web::{ApiError, Caller, Shared, api::ask},
};
use baton_broker_queue::{JobView, Phase};
use baton_broker_store::{JobRow, Span};
use std::sync::Arc;
use tokio::time::Instant;

/// How many finished jobs are shown.
const HISTORY: u32 = 20;

/// What pages show of the past.
pub(super) struct Past {
    pub(super) finished: Vec<JobRow>,
    pub(super) day: Vec<Span>,
    /// When it was read, and what [`Metrics::finished_changes`](crate::metrics::Metrics::finished_changes) was then.
    read_at: Instant,
    finished_changes: u64,
}

impl Past {
    async fn read(shared: &Shared, caller: &Caller, now_ms: i64) -> Result<Self, ApiError> {
        // Read first, so that a change during the queries is noticed the next time.
        let finished_changes = shared.metrics.finished_changes();
        let read_at = Instant::now();
        let finished = shared.store.jobs().finished(&caller.identity, HISTORY);
        Ok(Self {
            finished: finished.await?,
            day: shared.store.past().last_day(now_ms).await?,
            read_at,
            finished_changes,
        })
    }

    fn is_current(&self, shared: &Shared) -> bool {
        self.finished_changes == shared.metrics.finished_changes()
            && self.read_at.elapsed() < minutes::LOOK_EVERY
    }
}

pub(super) async fn look(shared: &Shared, caller: &Caller) -> Result<Facts, ApiError> {
    look_again(shared, caller, None).await
}

/// For a page that is open: reads the past again only if it may have changed.
pub(super) async fn look_again(
    shared: &Shared,
    caller: &Caller,
    past: Option<Arc<Past>>,
) -> Result<Facts, ApiError> {
    let mut present = ask(shared, Event::Overview).await?;
    let now_ms = unix_ms();
    let jobs = std::mem::take(&mut present.jobs);
    let (mut waiting, running): (Vec<JobView>, Vec<JobView>) =
        jobs.into_iter().partition(|job| job.phase == Phase::Queued);
    waiting.retain(|job| caller.identity.may_see(&job.account));
    waiting.sort_by_key(|job| job.waiting.as_ref().map(|waiting| waiting.position));
    let past = match past.filter(|past| past.is_current(shared)) {
        Some(past) => past,
        None => Arc::new(Past::read(shared, caller, now_ms).await?),
    };
    Ok(Facts {
        now_ms,
        pools: shared.pools.all(),
        zone: Zone::of(shared),
        present,
        running,
        waiting,
        past,
    })
}

/// Logs an error and returns `None`. The stream then ends, and the page connects again.
pub(super) fn some<T>(found: Result<Option<T>, ApiError>) -> Option<T> {
    found.unwrap_or_else(|error| {
        tracing::error!("Failed to update a page: {error}");
        None
    })
}
