//! Everything that pages show of the present, from a single moment. Only what the caller may see,
//! except for counts.

use super::{Facts, time::Zone};
use crate::{
    clock::unix_ms,
    engine::Event,
    web::{
        Caller, Shared,
        api::{ApiError, ask},
    },
};
use baton_broker_queue::{JobView, Phase};

/// How many finished jobs are shown.
const HISTORY: u32 = 20;

pub(super) async fn look(shared: &Shared, caller: &Caller) -> Result<Facts, ApiError> {
    let mut present = ask(shared, Event::Overview).await?;
    let now_ms = unix_ms();
    let jobs = std::mem::take(&mut present.jobs);
    let (mut waiting, running): (Vec<JobView>, Vec<JobView>) =
        jobs.into_iter().partition(|job| job.phase == Phase::Queued);
    waiting.retain(|job| caller.identity.may_see(&job.account));
    waiting.sort_by_key(|job| job.waiting.as_ref().map(|waiting| waiting.position));
    Ok(Facts {
        now_ms,
        pools: shared.pools.all(),
        zone: Zone::of(shared),
        present,
        running,
        waiting,
        finished: shared
            .store
            .jobs()
            .finished(&caller.identity, HISTORY)
            .await?,
        day: shared.store.past().last_day(now_ms).await?,
    })
}

/// Logs an error and returns `None`. The stream then ends, and the page connects again.
pub(super) fn some<T>(found: Result<Option<T>, ApiError>) -> Option<T> {
    found.unwrap_or_else(|error| {
        tracing::error!("Failed to update a page: {error}");
        None
    })
}
