//! A database that lost its last changes, because its machine crashed or an older copy was restored.
//!
//! Workers and proxies report up to which event they know a job to be stored. If that is more than
//! the database contains, the broker cannot know whether the cell has run. It does not run the cell
//! again, and the student gets an error. A job from before this broker's start is assigned to no
//! worker until its proxy has asked for it.

use super::{
    Batch, ConnectionId, Dispatch, Job, Observation, Phase,
    job::Abandoned,
    orphans, refusals,
    transitions::{abandon, cancel, close, end_by_broker, remainder_lost, requeue},
};
use baton_humanize::one_line;
use baton_protocol::{
    FencingNumber, JobId, Outcome, RemoteError, WorkerId,
    wording::{check_and_run_again, with_safety},
    worker::{Acknowledged, ToWorker},
};

/// An assignment as its worker reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldAssignment {
    pub(super) job: JobId,
    pub(super) fencing: FencingNumber,
    pub(super) acknowledged: u64,
    pub(super) started: bool,
}

impl HeldAssignment {
    pub(super) fn new(job: JobId, fencing: FencingNumber, known: Option<&Acknowledged>) -> Self {
        Self {
            job,
            fencing,
            acknowledged: known.map_or(0, |known| known.number),
            started: known.is_some_and(|known| known.started),
        }
    }

    /// Whether the broker had acknowledged more of the job to the worker than it has stored.
    pub(super) fn is_ahead_of(&self, job: &Job, worker: WorkerId) -> bool {
        match job.is_assigned_to(worker, self.fencing) {
            true => self.acknowledged > job.acknowledged(),
            // Without a lost record, a started job leaves its worker only when it ends.
            false => self.started && job.phase() != Phase::Finished,
        }
    }
}

/// Handles a worker that knows more of its assignment than the database.
pub(super) fn worker_is_ahead(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    held: HeldAssignment,
    batch: &mut Batch,
) {
    let (id, fencing) = (held.job, held.fencing);
    batch.send_worker(connection, ToWorker::Revoke { job: id, fencing });
    match dispatch.jobs.get_mut(id).map(|job| (job.phase(), job)) {
        Some((Phase::Finished, _)) => remainder_lost(dispatch, id, batch),
        // The worker had no permission to start it, so the cell has not run.
        Some((Phase::Assigned, _)) if !held.started => requeue(dispatch, id, batch),
        Some((_, job)) => {
            job.skip_to_fencing(fencing);
            batch.log(Observation::RecordsLost(id));
            run_forgotten(dispatch, id, batch);
        }
        None => {}
    }
}

/// Handles a proxy that says that it has received more events than are stored. If that is true, their numbers must not
/// be used again. Only a worker's report proves a loss, so this ends no more than the job. If its proxy had asked for
/// the job before, nothing was lost, and the job is cancelled like any other.
pub(super) fn proxy_is_ahead(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    claim: Claim,
    batch: &mut Batch,
) {
    let id = claim.job;
    let job = dispatch.jobs.get(id);
    // A cell may ignore that it is cancelled, and its notebook repeat the claim at any pace.
    if let Some(job) = job.filter(|job| job.abandoned.is_none()) {
        batch.log(Observation::NotebookIsAhead {
            job: id,
            person: one_line(&job.account.owner),
            claimed: claim.after,
            stored: claim.stored,
        });
        match claim.may_be_lost {
            true => end_unclaimed(dispatch, id, batch),
            false => abandon(dispatch, id, Abandoned::AsItEnded, batch),
        }
    }
    refusals::unknown_job(connection, id, batch);
}

fn end_unclaimed(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    if let Some(job) = dispatch.jobs.get(id)
        && let Some(runner) = dispatch.peers.runner(job).filter(|_| job.is_running())
    {
        let fencing = job.fencing();
        batch.send_worker(runner, ToWorker::Revoke { job: id, fencing });
    }
    if let Some(job) = dispatch.jobs.get_mut(id) {
        job.abandoned = Some(Abandoned::AsItEnded);
        match job.phase() {
            Phase::Finished => close(dispatch, id, batch),
            _ => run_forgotten(dispatch, id, batch),
        }
    }
}

fn run_forgotten(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let Some(kind) = dispatch.jobs.get(id).map(|job| job.kind) else {
        return;
    };
    let noun = kind.noun();
    let what = format!(
        "The GPU service lost its latest records, for example in a power failure, and cannot tell \
         whether this {noun} ran. It will not run again automatically"
    );
    let (what, hint) = (with_safety(&what, kind), check_and_run_again(kind));
    let error = RemoteError::of_baton("GpuServiceError", what, hint);
    end_by_broker(dispatch, id, Outcome::WorkerLost, Some(error), batch);
}

/// What a proxy says about its job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) job: JobId,
    /// The last event that it has received.
    after: u64,
    /// The last event that was stored when it had to ask for the job.
    stored: u64,
    /// It had not asked for the job yet, so the database may have lost events that it has received.
    may_be_lost: bool,
}

impl Claim {
    pub(super) fn is_ahead(&self) -> bool {
        self.after > self.stored
    }
}

/// Marks the job as claimed by its proxy. Returns `None` if there is no such job.
pub(super) fn claim(dispatch: &mut Dispatch, id: JobId, after: u64) -> Option<Claim> {
    let job = dispatch.jobs.get_mut(id)?;
    let claimed = job.unclaimed.take();
    if claimed.is_some() {
        job.waiting = None;
        dispatch.plan_is_stale = true;
    }
    Some(Claim {
        job: id,
        after,
        stored: claimed.map_or(job.last_event(), |stored| stored.last_event),
        may_be_lost: claimed.is_some(),
    })
}

/// Cancels jobs whose proxies did not ask for them in time: these know how the jobs ended, or
/// will never ask. The results of absent notebooks are deleted.
pub(super) fn cancel_unclaimed(dispatch: &mut Dispatch, batch: &mut Batch) {
    let is_over = |job: &Job| {
        job.unclaimed
            .is_some_and(|stored| stored.until <= batch.now.instant)
    };
    for id in dispatch.jobs.ids(is_over) {
        if orphans::orphan(dispatch, id, batch) {
            continue;
        }
        let Some(job) = dispatch.jobs.get_mut(id) else {
            continue;
        };
        job.unclaimed = None;
        if !dispatch.peers.notebooks.contains_key(&job.notebook) {
            abandon(dispatch, id, Abandoned::AsItEnded, batch);
        } else if job.phase() != Phase::Finished {
            job.abandoned = Some(Abandoned::AsItEnded);
            cancel(dispatch, id, batch);
        }
    }
}
