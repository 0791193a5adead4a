//! Jobs that continue after their notebook kernel has ended: background cells that have started.
//!
//! Such a job is an orphan. The object table that its session shared with the notebook is gone. So
//! the session salvages what the cell had, and then ends. Another kernel of the same person can
//! attach the job: it receives all of the job's events, and then the salvaged state.

use super::{
    Batch, ConnectionId, Dispatch, Job, NotDone, Observation, Phase,
    job::Abandoned,
    refusals,
    transitions::{abandon, close, make_room_for_results_of},
};
use crate::Account;
use baton_protocol::{JobId, NotebookId, api::AttachableJob, proxy::ToProxy, worker::ToWorker};
use std::time::Instant;

/// The job's notebook is gone. Returns whether the job continues as an orphan.
pub(super) fn orphan(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) -> bool {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return false;
    };
    if job.is_orphan() {
        return true;
    }
    if !(job.may_be_orphaned() && job.is_salvageable()) {
        return false;
    }
    keep_for_others(dispatch, id, batch);
    true
}

fn keep_for_others(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    batch.log(Observation::GoesOnWithoutKernel(id));
    batch.write(job.orphan(batch.now));
    if let Some(connection) = dispatch.peers.runner(job) {
        batch.send_worker(connection, ToWorker::Salvage { job: id });
    }
    make_room_for_results_of(dispatch, id, batch);
}

/// The notebook kernel was only disconnected. A job that it has let go stays an orphan: otherwise a notebook could fill
/// the worker's queue by turns.
pub(super) fn adopt(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let job = dispatch.jobs.get_mut(id);
    if let Some(job) = job.filter(|job| job.attached.is_none() && job.is_orphan() && !job.let_go) {
        batch.write(job.adopt());
        if let Some(connection) = dispatch.peers.runner(job) {
            batch.send_worker(connection, ToWorker::Adopted { job: id });
        }
    }
}

/// The events of a job after the one with this number.
pub(super) struct EventsAfter {
    pub(super) job: JobId,
    pub(super) number: u64,
}

/// Another kernel of the same person follows the job. If several do, the newest one counts.
pub(super) fn attach(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    notebook: NotebookId,
    EventsAfter { job: id, number }: EventsAfter,
    batch: &mut Batch,
) {
    let account = dispatch
        .peers
        .notebooks
        .get(&notebook)
        .and_then(|notebook| notebook.account.clone());
    let job = dispatch.jobs.get_mut(id).filter(|job| {
        job.is_orphan() && Some(&job.account) == account.as_ref() && number <= job.last_event()
    });
    let Some(job) = job else {
        return refusals::unknown_job(connection, id, batch);
    };
    let before = job.attached.replace(notebook);
    if let Some(before) = before.filter(|before| *before != notebook)
        && let Some(before) = dispatch.peers.notebooks.get_mut(&before)
        && before.subscriptions.remove(&id).is_some()
        && let Some(connection) = before.connection
    {
        refusals::unknown_job(connection, id, batch);
    }
    dispatch.peers.subscribe(connection, job, number, batch);
}

/// Its follower no longer waits for the job.
pub(super) fn on_detach(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    id: JobId,
    batch: &mut Batch,
) {
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    if job.attached.is_some() {
        detach(dispatch, id);
    } else if job.may_be_orphaned() && job.started_ms().is_some() && !job.is_orphan() {
        if let Some(notebook) = dispatch.peers.notebooks.get_mut(&job.notebook) {
            notebook.subscriptions.remove(&id);
        }
        if let Some(job) = dispatch.jobs.get_mut(id) {
            job.let_go = true;
        }
        keep_for_others(dispatch, id, batch);
    }
    batch.send_proxy(connection, ToProxy::Closed { job: id });
}

/// The job waits for another kernel.
pub(super) fn detach(dispatch: &mut Dispatch, id: JobId) {
    if let Some(job) = dispatch.jobs.get_mut(id)
        && let Some(notebook) = job.attached.take()
        && let Some(notebook) = dispatch.peers.notebooks.get_mut(&notebook)
    {
        notebook.subscriptions.remove(&id);
    }
}

pub(super) fn detach_all(dispatch: &mut Dispatch, notebook: NotebookId) {
    for job in dispatch.jobs.ids(|job| job.attached == Some(notebook)) {
        detach(dispatch, job);
    }
}

pub(super) fn attachable(dispatch: &Dispatch, account: &Account) -> Vec<AttachableJob> {
    let of_person =
        |job: &Job| job.is_orphan() && job.abandoned.is_none() && job.account == *account;
    let jobs = dispatch.jobs.in_order(of_person);
    let entry = |job: &Job| AttachableJob {
        job: job.id,
        kind: job.kind,
        notebook: job.notebook_name.clone(),
        execution_count: job.execution_count,
        submitted_ms: job.submitted_ms,
        outcome: job.outcome(),
    };
    jobs.into_iter().map(entry).collect()
}

pub(super) fn discard(
    dispatch: &mut Dispatch,
    account: &Account,
    id: JobId,
    batch: &mut Batch,
) -> Result<(), NotDone> {
    let job = dispatch.jobs.get(id);
    job.filter(|job| job.is_orphan() && job.account == *account)
        .ok_or(NotDone::UnknownJob(id))?;
    abandon(dispatch, id, Abandoned::AsItEnded, batch);
    Ok(())
}

pub(super) fn end_at(dispatch: &Dispatch) -> Option<Instant> {
    let finished = dispatch
        .jobs
        .iter()
        .filter(|job| job.phase() == Phase::Finished);
    finished.filter_map(Job::kept_until).min()
}

pub(super) fn forget_old(dispatch: &mut Dispatch, batch: &mut Batch) {
    for job in dispatch.jobs.ids(|job| job.has_expired(batch.now.instant)) {
        close(dispatch, job, batch);
    }
}
