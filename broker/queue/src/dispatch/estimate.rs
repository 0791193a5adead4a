//! Estimates of when waiting jobs start, made from past runs as often as their cost allows.
//!
//! A short queue is estimated at once. A long one is estimated in steps, one after each decision of
//! the dispatcher, so that no decision has to wait for a complete estimate.

use super::{Dispatch, Job, Now, Phase};
use baton_protocol::JobId;
use baton_scheduling::queue::{
    self as order, Estimation, History, Open, Progress, StartEstimate, Times,
};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// After an estimate for n jobs, the next one waits n times this, so estimates take a small share
/// of the broker's time.
const PAUSE_FOR_EACH: Duration = Duration::from_millis(4);
/// A range whose end has passed is useless. A new estimate follows, but no sooner than this.
const SOONEST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub(super) struct Estimates {
    /// Starts are in milliseconds since 1970.
    of_jobs: HashMap<JobId, StartEstimate>,
    next: Option<Instant>,
    unfinished: Option<Unfinished>,
}

#[derive(Debug, Clone)]
struct Unfinished {
    estimation: Estimation,
    /// The time to which the estimate's times are relative, in milliseconds since 1970.
    from_ms: u64,
    continue_at: Instant,
}

impl Estimates {
    pub(super) fn of(&self, job: JobId) -> Option<StartEstimate> {
        self.of_jobs.get(&job).copied()
    }

    /// When the next step is due.
    pub(super) fn continue_at(&self) -> Option<Instant> {
        self.unfinished
            .as_ref()
            .map(|unfinished| unfinished.continue_at)
    }
}

/// Begins a new estimate. If the last one is too recent, plans it for later.
pub(super) fn begin(
    dispatch: &mut Dispatch,
    jobs: &[order::Job],
    workers: &[order::Worker],
    now: Now,
) {
    if dispatch.estimates.unfinished.is_some() {
        return;
    }
    if let Some(next) = dispatch.estimates.next.filter(|next| *next > now.instant) {
        dispatch.recheck_at(next);
        return;
    }
    let open: Vec<Open<'_>> = jobs
        .iter()
        .filter_map(|job| dispatch.jobs.get(job.job))
        .map(|job| open(job, now))
        .collect();
    let outlook = dispatch.history.outlook(&open, now.unix_ms, |account| {
        dispatch.accounts.precedence(account, now)
    });
    dispatch.estimates.unfinished = Some(Unfinished {
        estimation: Estimation::new(
            jobs,
            workers,
            dispatch.accounts.courses().jobs_per_person,
            outlook,
        ),
        from_ms: u64::try_from(now.unix_ms).unwrap_or(0),
        continue_at: now.instant,
    });
    proceed(dispatch, now);
}

/// Takes the next step of an unfinished estimate. Returns whether that was the last step.
pub(super) fn proceed(dispatch: &mut Dispatch, now: Now) -> bool {
    let Some(mut unfinished) = dispatch.estimates.unfinished.take() else {
        return false;
    };
    let is_finished = unfinished.estimation.play();
    if is_finished {
        finish(dispatch, unfinished, now);
    } else {
        unfinished.continue_at = now.instant;
        dispatch.estimates.unfinished = Some(unfinished);
    }
    is_finished
}

fn finish(dispatch: &mut Dispatch, unfinished: Unfinished, now: Now) {
    let from_ms = unfinished.from_ms;
    let shown = unfinished.estimation.finish();
    let waiting = u32::try_from(shown.len()).unwrap_or(u32::MAX);
    let absolute = |(job, estimate): (JobId, Option<StartEstimate>)| {
        let estimate = estimate?;
        let starts = estimate.starts.map(|ms| ms.saturating_add(from_ms));
        Some((job, StartEstimate { starts, ..estimate }))
    };
    dispatch.estimates = Estimates {
        of_jobs: shown.into_iter().filter_map(absolute).collect(),
        next: Some(now.instant + PAUSE_FOR_EACH * waiting),
        unfinished: None,
    };
    let over = dispatch
        .estimates
        .of_jobs
        .values()
        .map(|said| said.starts.upper);
    if let Some(over) = over.min() {
        let now_ms = u64::try_from(now.unix_ms).unwrap_or(0);
        let left = Duration::from_millis(over.saturating_sub(now_ms));
        dispatch.recheck_at(now.instant + left.max(SOONEST));
    }
}

fn open(job: &Job, now: Now) -> Open<'_> {
    let since = |ms: i64| u64::try_from(now.unix_ms.saturating_sub(ms)).unwrap_or(0);
    let progress = match (job.phase(), job.started_ms()) {
        (Phase::Queued, _) => Progress::Waits,
        (_, Some(started_ms)) => Progress::Runs {
            already_ms: since(started_ms),
        },
        (_, None) => {
            let (assigned_ms, cold) = job.assigned().unwrap_or((now.unix_ms, true));
            Progress::Starts {
                cold,
                already_ms: since(assigned_ms),
            }
        }
    };
    Open {
        cell: job.cell_key,
        account: &job.account,
        progress,
        limit_ms: job.timeout_ms(),
    }
}

/// Records how long the job is likely to run. It costs too much to compute this for each look at the queue.
pub(super) fn foresee(dispatch: &mut Dispatch, id: JobId) {
    if let Some(job) = dispatch.jobs.get_mut(id) {
        let takes = takes(&dispatch.history, job);
        job.takes_ms = takes.map(|takes| takes.middle());
    }
}

/// How long the job is expected to run once it has started.
pub(super) fn takes(history: &History, job: &Job) -> Option<Times> {
    history.takes(job.cell_key, &job.account, 0, job.timeout_ms())
}
