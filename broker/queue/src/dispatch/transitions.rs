//! The changes of a job that several kinds of events cause, with their consequences: what is stored and sent, and
//! what the account is charged. A [`Job`] knows only its own fields.

use super::{
    Action, Batch, Dispatch, Job, Now, Phase, Remainder, Subscription,
    job::{Abandoned, End},
};
use crate::{StopReason, record::Write};
use baton_protocol::{
    Finished, JobEvent, JobId, NotebookId, Outcome, RemoteError, Usage,
    proxy::ToProxy,
    wording::{run_again, with_safety},
    worker::ToWorker,
};
use baton_scheduling::queue::Run;

/// Results kept for absent notebooks of one person in one course. The oldest one is removed first.
const MOST_ENDED: usize = 20;

pub(super) fn requeue(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    batch.write(job.requeue());
    dispatch.plan_is_stale = true;
}

/// Its notebook or its owner asks for it, or no notebook waits for it. Returns whether it was not known yet.
pub(super) fn cancel(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) -> bool {
    end_early(dispatch, id, None, batch)
}

/// Cancels a job that its student may have interrupted already. Returns whether it was not known yet, or the reason
/// was another one.
pub(super) fn stop(
    dispatch: &mut Dispatch,
    id: JobId,
    reason: StopReason,
    batch: &mut Batch,
) -> bool {
    end_early(dispatch, id, Some(reason), batch)
}

fn end_early(
    dispatch: &mut Dispatch,
    id: JobId,
    reason: Option<StopReason>,
    batch: &mut Batch,
) -> bool {
    let Some(job) = dispatch.jobs.get(id) else {
        return false;
    };
    let runner = dispatch.peers.runner(job);
    let (phase, is_known) = (job.phase(), job.is_cancel_wanted());
    if phase == Phase::Finished {
        return false;
    }
    let job = dispatch.jobs.get_mut(id);
    let write = job.and_then(|job| job.want_cancel(reason));
    let is_new = write.is_some();
    if let Some(write) = write {
        batch.write(write);
    }
    match (phase, runner) {
        // As far as the broker knows it has not started, so it can end here. If the worker
        // reconnects with it, the broker revokes it.
        (Phase::Queued, _) | (Phase::Assigned, None) => end_cancelled(dispatch, id, batch),
        (_, Some(connection)) if !is_known => {
            batch.send_worker(connection, ToWorker::Cancel { job: id });
        }
        // The worker knows, or gets `Cancel` when it reconnects.
        _ => {}
    }
    is_new
}

/// Ends a cancelled job that has not started.
pub(super) fn end_cancelled(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let job = dispatch.jobs.get(id);
    let error = job.and_then(|job| Some(job.stopped()?.error(job.kind, false)));
    end_by_broker(dispatch, id, Outcome::Cancelled, error, batch);
}

pub(super) fn abandon(dispatch: &mut Dispatch, id: JobId, how: Abandoned, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    job.abandoned = Some(how);
    match job.phase() {
        Phase::Finished => close(dispatch, id, batch),
        _ => {
            cancel(dispatch, id, batch);
        }
    }
}

pub(super) fn worker_lost(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    let worker = dispatch.peers.name_of_worker(Some(job));
    let what = format!("{worker} was lost while this {} ran", job.kind.noun());
    let what = with_safety(&what, job.kind);
    let error = RemoteError::of_baton("WorkerLost", what, run_again(job.kind));
    end_by_broker(dispatch, id, Outcome::WorkerLost, Some(error), batch);
}

/// The broker ends a job itself. A worker that still holds it is fenced off, as by a new assignment.
pub(super) fn end_by_broker(
    dispatch: &mut Dispatch,
    id: JobId,
    outcome: Outcome,
    error: Option<RemoteError>,
    batch: &mut Batch,
) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    job.fence_off();
    let usage = ran(dispatch, id, batch.now);
    let charged = charge(dispatch, id, usage.run_ms, batch);
    let end = JobEvent::Finished(Finished {
        usage,
        ..Finished::without_state(outcome, error.clone())
    });
    append(
        dispatch,
        id,
        charged.into_iter().chain([end]).collect(),
        None,
        batch,
    );
    let end = End {
        outcome,
        usage,
        error,
        returned_bytes: None,
    };
    if let Some(job) = dispatch.jobs.get_mut(id) {
        let write = job.finish(end, batch.now);
        let ended = Ended {
            outcome,
            usage,
            write,
        };
        after_end(dispatch, id, ended, batch);
    }
}

/// The end of a job.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) usage: Usage,
    /// Stores the end. Its event is stored first.
    pub(super) write: Write,
}

/// What follows from a job's end, whose event has already been appended.
pub(super) fn after_end(dispatch: &mut Dispatch, id: JobId, end: Ended, batch: &mut Batch) {
    remember(dispatch, id, end.outcome, end.usage, batch.now);
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    batch.write(end.write);
    dispatch.plan_is_stale = true;
    let notebook = job.notebook;
    let is_left = !job.is_kept() && !dispatch.peers.notebooks.contains_key(&notebook);
    let is_unneeded = job.abandoned.is_some() || is_left;
    if is_unneeded {
        close(dispatch, id, batch);
    } else if job.unclaimed.is_some() {
        end_unneeded_sessions(dispatch, notebook, batch);
    }
    make_room_for_results_of(dispatch, id, batch);
}

pub(super) fn close(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.remove(id) else {
        return;
    };
    let notebook = dispatch.peers.notebooks.get_mut(&job.follower());
    let proxy = notebook.and_then(|notebook| {
        notebook.subscriptions.remove(&id);
        notebook.connection
    });
    if job.remainder() != Remainder::Nothing
        && let Some(connection) = dispatch.peers.runner(&job)
    {
        let fencing = job.fencing();
        batch.send_worker(connection, ToWorker::Revoke { job: id, fencing });
    }
    if job.is_kept() {
        end_unneeded_sessions(dispatch, job.notebook, batch);
    }
    if let Some(proxy) = proxy {
        batch.send_proxy(proxy, ToProxy::Closed { job: id });
    }
    let (writes, is_known) = job.close();
    for write in writes {
        batch.write(write);
    }
    if is_known {
        dispatch.jobs.remember_closed(id, job.notebook);
    }
}

/// Gives up what the worker still had of the job.
pub(super) fn remainder_lost(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let worker = dispatch.peers.name_of_worker(dispatch.jobs.get(id));
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    let kind = job.kind;
    let error = |value| RemoteError::of_baton("WorkerLost", value, run_again(kind));
    let event = match job.lose_remainder() {
        Remainder::Deferred | Remainder::Sent => {
            job.fence_off();
            JobEvent::DeferredState {
                state: None,
                error: Some(error(format!(
                    "The connection to {worker} was lost before all results had arrived"
                ))),
            }
        }
        Remainder::Session if job.is_orphan() => JobEvent::Salvaged {
            state: None,
            files: Vec::new(),
            error: Some(error(format!(
                "The connection to {worker} was lost before the variables of this {} had arrived",
                kind.noun()
            ))),
        },
        // Its notebook already has the result.
        Remainder::Session | Remainder::Nothing => return,
    };
    append(dispatch, id, vec![event], None, batch);
}

/// Numbers events, stores them, and forwards them to a proxy that follows the job live.
pub(super) fn append(
    dispatch: &mut Dispatch,
    id: JobId,
    events: Vec<JobEvent>,
    acknowledged: Option<u64>,
    batch: &mut Batch,
) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    let events = job.number(events, acknowledged);
    if !events.is_empty()
        && let Some(notebook) = dispatch.peers.notebooks.get(&job.follower())
        && let Some(connection) = notebook.connection
        && notebook.subscriptions.get(&id) == Some(&Subscription::Live)
    {
        batch.push(Action::Forward(connection, id, events.clone()));
    }
    batch.write(Write::Events {
        job: id,
        acknowledged,
        events,
    });
}

/// Charges a job's run to its account.
pub(super) fn charge(
    dispatch: &mut Dispatch,
    id: JobId,
    run_ms: u64,
    batch: &mut Batch,
) -> Option<JobEvent> {
    let account = &dispatch.jobs.get(id)?.account;
    dispatch.accounts.charge(account, run_ms, batch)
}

/// How long a job ran, if its worker does not report it: at most until its worker was last known to run, and not
/// longer than the worker lets it run.
pub(super) fn ran(dispatch: &Dispatch, id: JobId, now: Now) -> Usage {
    let job = dispatch.jobs.get(id);
    let worker = job.and_then(|job| dispatch.peers.workers.get(&job.worker()?));
    let absent_ms = worker.and_then(|worker| worker.disconnected_since_ms);
    let until_ms = absent_ms.map_or(now.unix_ms, |ms| ms.min(now.unix_ms));
    let started_ms = job.and_then(Job::started_ms);
    let run_ms = started_ms.map_or(0, |started| until_ms.saturating_sub(started));
    let limit_ms = job.and_then(Job::timeout_ms).unwrap_or(u64::MAX);
    Usage {
        run_ms: u64::try_from(run_ms).unwrap_or(0).min(limit_ms),
        ..Usage::default()
    }
}

/// Records that the job's person is active. If the run ended by itself, records it for later estimates.
pub(super) fn remember(
    dispatch: &mut Dispatch,
    id: JobId,
    outcome: Outcome,
    usage: Usage,
    now: Now,
) {
    let by_itself = matches!(outcome, Outcome::Ok | Outcome::Error | Outcome::TimedOut);
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    dispatch.history.ended(&job.account, now.unix_ms);
    if by_itself {
        dispatch.history.add(Run {
            cell: job.cell_key,
            account: job.account.clone(),
            run_ms: usage.run_ms,
        });
    }
}

/// Ends the sessions of an absent notebook, unless a result that is still needed exists only there.
pub(super) fn end_unneeded_sessions(dispatch: &mut Dispatch, id: NotebookId, batch: &mut Batch) {
    let is_present = dispatch.peers.notebooks.contains_key(&id);
    let needs_session = |job: &Job| job.notebook == id && job.needs_session();
    if !is_present && !dispatch.jobs.iter().any(needs_session) {
        dispatch.peers.end_sessions(id, batch);
    }
}

/// Limits the results that are kept for absent notebooks of an account. Call it if one more may be kept.
pub(super) fn make_room_for_results_of(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let job = dispatch.jobs.get(id);
    let Some(newest) = job.filter(|job| job.is_kept()) else {
        return;
    };
    let has_ended = |job: &Job| {
        let ended = job.is_kept() && job.phase() == Phase::Finished;
        ended && job.account == newest.account
    };
    let ended = dispatch.jobs.in_order(has_ended);
    let surplus = ended.len().saturating_sub(MOST_ENDED);
    let oldest: Vec<JobId> = ended[..surplus].iter().map(|job| job.id).collect();
    for job in oldest {
        close(dispatch, job, batch);
    }
}
