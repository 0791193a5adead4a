//! The events that workers report about their jobs.

use super::{
    Batch, ConnectionId, Dispatch, Now, Observation, Phase, environments,
    job::Job,
    transitions::{
        Ended, after_end, append, charge, end_cancelled, end_unneeded_sessions, ran, requeue,
    },
};
use crate::{
    StopReason,
    bounds::{cut_prompt, cut_reason, cut_usage},
    record::Remainder,
};
use baton_protocol::{
    FencingNumber, Finished, JobEvent, JobId, JobKind, Outcome, RemoteError, Usage, WorkerId,
    worker::ToWorker,
};

/// Events of one assignment, as a worker numbers them.
pub(super) struct Reported {
    pub(super) job: JobId,
    pub(super) fencing: FencingNumber,
    /// The number of the first of these events.
    pub(super) first: u64,
    pub(super) events: Vec<JobEvent>,
}

/// Skips events that are already stored. A gap means that worker and broker disagree, so the
/// connection is closed.
pub(super) fn on_events(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    worker: WorkerId,
    reported: Reported,
    batch: &mut Batch,
) {
    let Reported {
        job: id,
        fencing,
        first,
        events,
    } = reported;
    let job = dispatch.jobs.get(id);
    let Some(job) = job.filter(|job| job.is_assigned_to(worker, fencing)) else {
        batch.send_worker(connection, ToWorker::Revoke { job: id, fencing });
        return;
    };
    if first == 0 || first > job.acknowledged() + 1 {
        batch.log(Observation::EventsMissing {
            job: id,
            worker,
            first,
            acknowledged: job.acknowledged(),
        });
        batch.close(connection);
        return;
    }
    let stored = usize::try_from(job.acknowledged() + 1 - first).unwrap_or(usize::MAX);
    let acknowledged = job.acknowledged().max(first + events.len() as u64 - 1);
    let new: Vec<JobEvent> = events.into_iter().skip(stored).collect();
    if !new.is_empty() {
        new_events(dispatch, id, new, acknowledged, batch);
    }
    batch.send_worker(
        connection,
        ToWorker::Acknowledge {
            job: id,
            fencing,
            number: acknowledged,
        },
    );
}

/// What follows from a worker's events once they are appended.
#[derive(Default)]
struct Consequences {
    started_on: Option<WorkerId>,
    not_started: Option<RemoteError>,
    end: Option<Ended>,
    state_has_arrived: bool,
}

fn new_events(
    dispatch: &mut Dispatch,
    id: JobId,
    events: Vec<JobEvent>,
    acknowledged: u64,
    batch: &mut Batch,
) {
    let mut follows = Consequences::default();
    let mut accepted = Vec::with_capacity(events.len());
    for event in events {
        accept(dispatch, id, event, &mut follows, &mut accepted, batch);
    }
    append(dispatch, id, accepted, Some(acknowledged), batch);
    if let Some(end) = follows.end {
        after_end(dispatch, id, end, batch);
    }
    if follows.state_has_arrived
        && let Some(job) = dispatch.jobs.get(id).filter(|job| job.is_kept())
    {
        end_unneeded_sessions(dispatch, job.notebook, batch);
    }
    if let Some(worker) = follows.started_on {
        session_starts(dispatch, worker);
    }
    if let Some(error) = follows.not_started {
        not_started(dispatch, id, error, batch);
    }
}

/// Applies an event to its job, after it has been completed by what only the broker knows.
fn accept(
    dispatch: &mut Dispatch,
    id: JobId,
    mut event: JobEvent,
    follows: &mut Consequences,
    accepted: &mut Vec<JobEvent>,
    batch: &mut Batch,
) {
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    if !may_follow(job, &event) {
        batch.log(Observation::UnexpectedEvent {
            job: id,
            phase: job.phase(),
        });
        return;
    }
    match &mut event {
        JobEvent::NotStarted { error } => {
            follows.not_started = Some(error.clone());
            return;
        }
        JobEvent::Started { worker } => {
            *worker = dispatch.peers.name_of_worker(Some(job));
            follows.started_on = job.worker();
        }
        JobEvent::Finished(finished) => {
            if let Some(stopped) = job.stopped() {
                set_stop_reason(finished, stopped, job.kind, job.phase() == Phase::Started);
            }
            finished.usage = believed(dispatch, id, finished.usage, batch);
            let charged_ms = charged_ms(dispatch, id, finished, batch.now);
            accepted.extend(charge(dispatch, id, charged_ms, batch));
        }
        JobEvent::DeferredState { .. } | JobEvent::Salvaged { .. } => {
            follows.state_has_arrived = true;
        }
        JobEvent::InputWanted { prompt, .. } => cut_prompt(prompt),
        _ => {}
    }
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    match (job.apply(&event, batch.now), &event) {
        (Some(write), JobEvent::Finished(finished)) => {
            follows.end = Some(Ended {
                outcome: finished.outcome,
                usage: finished.usage,
                write,
            });
        }
        (Some(write), _) => batch.write(write),
        (None, _) => {}
    }
    if matches!(event, JobEvent::Started { .. }) {
        learn_from_start(dispatch, id, batch.now);
    }
    accepted.push(event);
}

/// Learns from how long it took until the job started.
fn learn_from_start(dispatch: &mut Dispatch, id: JobId, now: Now) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    if let Some((assigned_ms, cold)) = job.assigned() {
        let took_ms = now.unix_ms.saturating_sub(assigned_ms);
        dispatch
            .history
            .started(cold, u64::try_from(took_ms).unwrap_or(0));
    }
    let ranges = std::mem::take(&mut job.shown_ranges);
    let now_ms = u64::try_from(now.unix_ms).unwrap_or(0);
    dispatch
        .history
        .started_after(&job.account, &ranges, now_ms);
    if let Some(notebook) = dispatch.peers.notebooks.get_mut(&job.notebook) {
        notebook.ran_on = job.worker();
    }
}

/// The GPU time that the job's account is charged.
fn charged_ms(dispatch: &Dispatch, id: JobId, finished: &Finished, now: Now) -> u64 {
    let run_ms = match finished.usage.run_ms {
        // A session that died cannot report its time. A refused cell did not run,
        // although it had started.
        0 if finished.outcome != Outcome::Refused => ran(dispatch, id, now).run_ms,
        run_ms => run_ms,
    };
    let job = dispatch.jobs.get(id);
    match finished.usage.gpu {
        // Under time-sharing, a program leaves the GPU to others between its leases, but not its slot.
        Some(gpu) if job.is_some_and(|job| job.kind.is_program()) => {
            let worker = job.and_then(|job| dispatch.peers.workers.get(&job.worker()?));
            let slots = worker.map_or(1, |worker| worker.slots.max(1));
            let of_slot_ms = run_ms.div_ceil(slots.into());
            gpu.held_ms.clamp(of_slot_ms, run_ms)
        }
        _ => run_ms,
    }
}

/// The usage that the worker reports, limited to what is possible.
fn believed(dispatch: &Dispatch, id: JobId, usage: Usage, batch: &mut Batch) -> Usage {
    let Some(job) = dispatch.jobs.get(id) else {
        return usage;
    };
    let wall_ms = job
        .started_ms()
        .map_or(0, |started| batch.now.unix_ms - started);
    let worker = job
        .worker()
        .and_then(|worker| dispatch.peers.workers.get(&worker));
    let devices = worker.map_or(1, |worker| worker.offer.devices.len());
    let cut = cut_usage(usage, u64::try_from(wall_ms).unwrap_or(0), devices);
    if cut.is_some() {
        batch.log(Observation::ImpossibleUsage {
            job: id,
            worker: worker.map(|worker| worker.name.clone()).unwrap_or_default(),
            run_ms: usage.run_ms,
            wall_ms,
        });
    }
    cut.unwrap_or(usage)
}

/// The worker cannot start a session. The job returns to the queue, for another worker or for
/// this one later.
fn not_started(dispatch: &mut Dispatch, id: JobId, error: RemoteError, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    let cancelled = job.is_cancel_wanted();
    let environment = environments::of_job(dispatch, job);
    match (job.worker(), environment) {
        (Some(worker), Some(environment)) => {
            environments::failed(dispatch, worker, &environment, error.value, batch);
        }
        (Some(worker), None) => no_session_starts(dispatch, worker, error.value, batch),
        (None, _) => {}
    }
    if cancelled {
        end_cancelled(dispatch, id, batch);
    } else {
        requeue(dispatch, id, batch);
    }
}

pub(super) fn no_session_starts(
    dispatch: &mut Dispatch,
    worker: WorkerId,
    why: String,
    batch: &mut Batch,
) {
    if let Some(worker) = dispatch.peers.workers.get_mut(&worker) {
        worker.failing = Some(cut_reason(&why));
        batch.log(Observation::CannotStartSessions {
            worker: worker.name.clone(),
            environment: None,
            why,
        });
        dispatch.plan_is_stale = true;
    }
}

pub(super) fn session_starts(dispatch: &mut Dispatch, worker: WorkerId) {
    if let Some(worker) = dispatch.peers.workers.get_mut(&worker) {
        worker.failing = None;
        dispatch.plan_is_stale = true;
    }
}

/// Adds to the end of a cancelled job who stopped it. The session knows only that it was interrupted.
fn set_stop_reason(
    finished: &mut Finished,
    stopped: &StopReason,
    kind: JobKind,
    had_started: bool,
) {
    if finished.outcome != Outcome::Cancelled {
        return;
    }
    if finished.state.is_none() && !finished.salvageable {
        finished.error = Some(stopped.error(kind, had_started));
    } else if let Some(error) = &mut finished.error {
        error.value = stopped.sentence(kind);
        let line = format!("{}. Its changes so far are in your notebook", error.value);
        error.traceback.push(line);
    }
}

/// Whether a worker's event is valid in the job's phase.
fn may_follow(job: &Job, event: &JobEvent) -> bool {
    match (job.phase(), event) {
        (Phase::Finished, JobEvent::DeferredState { .. }) => {
            matches!(job.remainder(), Remainder::Deferred | Remainder::Sent)
        }
        (Phase::Finished, JobEvent::Salvaged { .. }) => job.remainder() == Remainder::Session,
        (
            Phase::Assigned,
            JobEvent::StateWanted { .. }
            | JobEvent::BytesWanted { .. }
            | JobEvent::Started { .. }
            | JobEvent::NotStarted { .. },
        )
        | (
            Phase::Started,
            JobEvent::Output(_) | JobEvent::InputWanted { .. } | JobEvent::NamesWanted { .. },
        )
        | (
            Phase::Assigned | Phase::Started,
            JobEvent::FilesWanted { .. } | JobEvent::Finished(_),
        ) => true,
        _ => false,
    }
}
