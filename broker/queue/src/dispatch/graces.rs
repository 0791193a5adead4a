//! What happens when a proxy or a worker does not reconnect.
//!
//! A worker: its assignments expire, and the cells that it had started are lost, because a cell is
//! never run twice.
//! A proxy: its jobs are cancelled and its sessions end, except for what `orphans.rs` keeps. If it said goodbye, that
//! is all. Otherwise the notebook may return, and the results of its jobs are kept for some hours.

use super::{
    Batch, Dispatch, Job, Observation, Phase, environments,
    job::Unclaimed,
    lost_records, orphans,
    peers::Missed,
    transitions::{
        cancel, close, end_cancelled, end_unneeded_sessions, make_room_for_results_of,
        remainder_lost, requeue, stop, worker_lost,
    },
};
use crate::{StopReason, record::Write};
use baton_protocol::{JobId, NotebookId, WorkerId};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// What a finished cell left on a worker exists nowhere else, so the worker gets this many graces
/// to reconnect before that is given up.
const DEFERRED_GRACES: u32 = 12;
/// How long results are kept for a notebook that does not respond. A restart of the broker begins this time anew.
const RETURN_TERM: Duration = Duration::from_secs(12 * 3600);

pub(super) fn next_deadline(dispatch: &Dispatch) -> Option<Instant> {
    let workers = dispatch
        .peers
        .workers
        .values()
        .filter_map(|worker| worker.deadline);
    let notebooks = dispatch
        .peers
        .notebooks
        .values()
        .filter_map(|notebook| notebook.deadline);
    let missed = dispatch.peers.missed.values().map(|missed| missed.deadline);
    let unclaimed = dispatch
        .jobs
        .iter()
        .filter_map(|job| Some(job.unclaimed?.until));
    let peers = workers.chain(notebooks).chain(missed).chain(unclaimed);
    let peers = peers.chain(orphans::end_at(dispatch));
    let line = dispatch
        .replan_at
        .into_iter()
        .chain(dispatch.locks_return_until)
        .chain(dispatch.estimates.continue_at());
    peers.chain(line).min()
}

pub(super) fn on_time_passed(dispatch: &mut Dispatch, batch: &mut Batch) {
    let now = batch.now.instant;
    let is_over = |deadline: Option<Instant>| deadline.is_some_and(|end| end <= now);
    let gone = ids(&dispatch.peers.workers, |worker| is_over(worker.deadline));
    for worker in &gone {
        on_worker_gone(dispatch, *worker, batch);
    }
    let all_are_back = dispatch.locks_return_until.take_if(|until| *until <= now);
    if all_are_back.is_some() || !gone.is_empty() {
        environments::ask_all_for_locks(dispatch, batch);
    }
    for worker in ids(&dispatch.peers.missed, |missed| missed.deadline <= now) {
        for job in dispatch.jobs.ids(|job| job.has_remainder_at(worker)) {
            remainder_lost(dispatch, job, batch);
        }
        dispatch.peers.missed.remove(&worker);
    }
    for notebook in ids(&dispatch.peers.notebooks, |one| is_over(one.deadline)) {
        on_silence(dispatch, notebook, batch);
    }
    lost_records::cancel_unclaimed(dispatch, batch);
    orphans::forget_old(dispatch, batch);
}

/// The ids of the peers that satisfy `holds`. Callers may change the peers meanwhile.
fn ids<Id: Copy, Peer>(peers: &HashMap<Id, Peer>, holds: impl Fn(&Peer) -> bool) -> Vec<Id> {
    let peers = peers.iter().filter(|(_, peer)| holds(peer));
    peers.map(|(id, _)| *id).collect()
}

fn on_worker_gone(dispatch: &mut Dispatch, id: WorkerId, batch: &mut Batch) {
    for job in dispatch
        .jobs
        .ids(|job| job.worker() == Some(id) && job.is_running())
    {
        match dispatch.jobs.get(job) {
            Some(job) if job.phase() == Phase::Started => worker_lost(dispatch, job.id, batch),
            Some(job) if job.is_cancel_wanted() => {
                end_cancelled(dispatch, job.id, batch);
            }
            _ => requeue(dispatch, job, batch),
        }
    }
    dispatch.peers.sessions_end(id, |_| true, batch);
    if let Some(worker) = dispatch.peers.workers.remove(&id) {
        batch.log(Observation::WorkerStaysAway {
            worker: worker.name.clone(),
        });
        if dispatch.jobs.iter().any(|job| job.has_remainder_at(id)) {
            let deadline = batch.now.instant + DEFERRED_GRACES * dispatch.graces.worker;
            dispatch.peers.missed.insert(
                id,
                Missed {
                    name: worker.name,
                    deadline,
                },
            );
        }
    }
    batch.write(Write::LoseWorker {
        worker: id,
        at_ms: batch.now.unix_ms,
    });
    dispatch.plan_is_stale = true;
}

/// The notebook kernel has ended, so no results are needed except those of orphans.
pub(super) fn on_goodbye(dispatch: &mut Dispatch, id: NotebookId, batch: &mut Batch) {
    for job in remove_notebook(dispatch, id, batch) {
        match dispatch.jobs.get(job).map(|job| job.phase()) {
            Some(Phase::Finished) => close(dispatch, job, batch),
            _ => {
                cancel(dispatch, job, batch);
            }
        }
    }
    end_unneeded_sessions(dispatch, id, batch);
}

/// The notebook may return, for example when its machine wakes up. Meanwhile it runs nothing, and its results
/// are kept.
fn on_silence(dispatch: &mut Dispatch, id: NotebookId, batch: &mut Batch) {
    for job in remove_notebook(dispatch, id, batch) {
        await_return(dispatch, job, batch);
        let stopped = dispatch.jobs.get(job).and_then(Job::stopped);
        let reason = stopped.cloned().unwrap_or(StopReason::NotebookAway {});
        stop(dispatch, job, reason, batch);
    }
    end_unneeded_sessions(dispatch, id, batch);
}

/// Returns its jobs, except orphans. Once the notebook is removed, a job that does not await its return is closed
/// as soon as it finishes.
fn remove_notebook(dispatch: &mut Dispatch, id: NotebookId, batch: &mut Batch) -> Vec<JobId> {
    dispatch.peers.notebooks.remove(&id);
    orphans::detach_all(dispatch, id);
    let mut jobs = dispatch.jobs.ids(|job| job.notebook == id);
    jobs.retain(|job| !orphans::orphan(dispatch, *job, batch));
    jobs
}

fn await_return(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    let last_event = job.last_event();
    let unclaimed = job.unclaimed.get_or_insert(Unclaimed {
        until: batch.now.instant,
        last_event,
    });
    if unclaimed.until <= batch.now.instant {
        unclaimed.until = batch.now.instant + RETURN_TERM;
        batch.log(Observation::AwaitsReturn(id));
    }
    make_room_for_results_of(dispatch, id, batch);
}
