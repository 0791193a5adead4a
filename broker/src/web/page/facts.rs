//! Everything that a page shows of the present, taken at one time: only what the caller may see, but for the counts.

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

/// Finished jobs.
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
            .finished_jobs(&caller.identity, HISTORY)
            .await?,
        day: shared.store.last_day(now_ms).await?,
    })
}

/// A stream that cannot go on ends, and its page asks again.
pub(super) fn some<T>(found: Result<Option<T>, ApiError>) -> Option<T> {
    found.unwrap_or_else(|error| {
        tracing::error!("Failed to update a page: {error}");
        None
    })
}
