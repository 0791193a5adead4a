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
use crate::wording::with_safety;
use baton_protocol::{
    FencingNumber, JobId, Outcome, RemoteError, WorkerId,
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
            run_forgotten(dispatch, id, batch);
        }
        None => {}
    }
}

/// Handles a proxy that has received more events than are stored. Their numbers must not be used again.
pub(super) fn proxy_is_ahead(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    id: JobId,
    batch: &mut Batch,
) {
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
    refusals::unknown_job(connection, id, batch);
}

fn run_forgotten(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    batch.log(Observation::RecordsLost(id));
    let Some(kind) = dispatch.jobs.get(id).map(|job| job.kind) else {
        return;
    };
    let noun = kind.noun();
    let what = format!(
        "The GPU service lost its latest records, for example in a power failure, and cannot tell \
         whether this {noun} ran. It will not run again automatically"
    );
    let hint = format!("check what the {noun} wrote or sent, then run it again");
    let error = RemoteError::of_baton("GpuServiceError", with_safety(&what, kind), hint);
    end_by_broker(dispatch, id, Outcome::WorkerLost, Some(error), batch);
}

/// Marks the job as claimed by its proxy. Returns `false` if the proxy has received more than was stored.
pub(super) fn claim(dispatch: &mut Dispatch, id: JobId, after: u64) -> bool {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return true;
    };
    let claimed = job.unclaimed.take();
    if claimed.is_some() {
        job.waiting = None;
        dispatch.plan_is_stale = true;
    }
    after <= claimed.map_or(job.last_event(), |stored| stored.last_event)
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
