//! The queue: assigns jobs, and computes what waiting people see.

use super::{
    Action, Assignment, Batch, Dispatch, Job, Now, Phase, Waiting, Worker, environments, estimate,
    needs, pools,
    transitions::{append, end_by_broker},
};
use baton_protocol::{JobEvent, JobId, Outcome, Priority, WorkerId, proxy::WaitingReason};
use baton_scheduling::queue::{
    self as order, JobsAhead, Precedence, QueuePosition, Reason, ShownPosition,
};
use std::{sync::Arc, time::Duration};

/// A text that changes faster cannot be read.
const NOTIFY_EVERY: Duration = Duration::from_secs(1);

/// The number of ranges kept for one job, which calibrate later estimates.
const MOST_RANGES: usize = 500;

/// Only pages show this: the proxy of such a job is not connected.
const UNCERTAIN: &str = "the broker was restarted, and the notebook has not reconnected yet";

pub(super) fn assign_and_notify(dispatch: &mut Dispatch, batch: &mut Batch) {
    drop_outdated_assignments(dispatch, batch);
    if dispatch.replan_at.is_some_and(|at| at <= batch.now.instant) {
        dispatch.plan_is_stale = true;
    }
    dispatch.plan_is_stale |= estimate::proceed(dispatch, batch.now);
    if !dispatch.plan_is_stale {
        return;
    }
    refuse_without_budget(dispatch, batch);
    needs::refuse_without_gpu(dispatch, batch);
    dispatch.plan_is_stale = false;
    dispatch.replan_at = None;
    let workers = connected_workers(dispatch, batch.now);
    let plan = order::plan(
        &unfinished(dispatch, batch.now),
        &workers,
        dispatch.accounts.courses().jobs_per_person,
    );
    for (job, worker) in plan.assignments {
        assign(dispatch, job, worker, batch);
    }
    if plan.positions.is_empty() {
        return;
    }
    let jobs = unfinished(dispatch, batch.now);
    estimate::begin(dispatch, &jobs, &workers, batch.now);
    let queue = order::in_queue_order(&jobs);
    let mut ahead = JobsAhead::default();
    for ((job, position), ordered) in plan.positions.into_iter().zip(queue) {
        if let Reason::OwnSession(_) = position.reason {
            recheck_for_session(dispatch, job, batch.now);
        }
        set_position(dispatch, ordered, position, &ahead, batch);
        ahead.add(ordered);
    }
}

/// A repeated assignment may have ended by a later event of the batch, after which the store has no cell to send.
fn drop_outdated_assignments(dispatch: &Dispatch, batch: &mut Batch) {
    let is_current = |assignment: &Assignment| {
        let job = dispatch.jobs.get(assignment.job);
        job.is_some_and(|job| job.phase() == Phase::Assigned && job.fencing() == assignment.fencing)
    };
    batch.actions.retain(|action| match action {
        Action::Assign(_, assignment) => is_current(assignment),
        _ => true,
    });
}

/// Plans a new look at the queue for when the job has waited for its own session long enough.
fn recheck_for_session(dispatch: &mut Dispatch, job: JobId, now: Now) {
    let Some(job) = dispatch.jobs.get(job) else {
        return;
    };
    let waited_ms = u64::try_from(now.unix_ms.saturating_sub(job.submitted_ms)).unwrap_or(0);
    let left = Duration::from_millis(order::SESSION_PATIENCE_MS.saturating_sub(waited_ms));
    dispatch.recheck_at(now.instant + left);
}

/// All unfinished jobs, in order of arrival.
pub(super) fn unfinished(dispatch: &Dispatch, now: Now) -> Vec<order::Job> {
    let unfinished = dispatch
        .jobs
        .iter()
        .filter(|job| job.phase() != Phase::Finished);
    let mut jobs: Vec<&Job> = unfinished.collect();
    jobs.sort_unstable_by_key(|job| job.sequence);
    jobs.into_iter()
        .map(|job| as_ordered(dispatch, job, now))
        .collect()
}

pub(super) fn as_ordered(dispatch: &Dispatch, job: &Job, now: Now) -> order::Job {
    let course = dispatch.accounts.courses().of(&job.account.course);
    let waited_ms = now.unix_ms.saturating_sub(job.submitted_ms);
    let waited_ms = u64::try_from(waited_ms).unwrap_or(0);
    order::Job {
        job: job.id,
        notebook: job.notebook,
        owner: job.account.owner.as_str().into(),
        worker: job.worker(),
        precedence: Precedence {
            low_priority: job.priority == Priority::Low,
            waited_ms,
            ..dispatch.accounts.precedence(&job.account, now)
        },
        held: job.held().is_some() || job.unclaimed.is_some(),
        paused: course.paused.is_some(),
        front: job.front_ms(),
        needs: needs::of_job(dispatch, job),
        takes_ms: job.takes_ms,
    }
}

/// A job without budget could wait for days, so it is refused.
fn refuse_without_budget(dispatch: &mut Dispatch, batch: &mut Batch) {
    let queued = dispatch.jobs.ids(|job| job.phase() == Phase::Queued);
    for id in queued {
        let job = dispatch.jobs.get(id);
        if let Some(error) =
            job.and_then(|job| dispatch.accounts.refusal(&job.account, job.kind, batch.now))
        {
            end_by_broker(dispatch, id, Outcome::Refused, Some(error), batch);
        }
    }
}

/// A worker that cannot start sessions is not open. Cells wait until its trial passes, or for
/// another worker.
pub(super) fn connected_workers(dispatch: &Dispatch, now: Now) -> Vec<order::Worker> {
    dispatch
        .peers
        .workers
        .iter()
        .filter(|(_, worker)| worker.connection.is_some() && !worker.draining)
        .map(|(id, worker)| order::Worker {
            worker: *id,
            slots: worker.slots,
            warm: dispatch.peers.current(*id, &worker.warm),
            keeping: dispatch.peers.current(*id, &worker.keeping),
            open: !is_paused(dispatch, worker)
                && worker.failing.is_none()
                && worker.leaves_in_ms(now) != Some(0),
            offer: Arc::clone(&worker.offer),
            leaves_in_ms: worker.leaves_in_ms(now),
        })
        .collect()
}

fn is_paused(dispatch: &Dispatch, worker: &Worker) -> bool {
    dispatch
        .accounts
        .courses()
        .worker_paused(&worker.name)
        .is_some()
}

fn assign(dispatch: &mut Dispatch, id: JobId, worker_id: WorkerId, batch: &mut Batch) {
    let left_ms = dispatch.jobs.get(id).and_then(|job| {
        let budget = dispatch.accounts.budget(&job.account, batch.now)?;
        Some(budget.left.left_ms)
    });
    let environment = dispatch
        .jobs
        .get(id)
        .and_then(|job| environments::of_job(dispatch, job));
    let (Some(job), Some(worker)) = (
        dispatch.jobs.get_mut(id),
        dispatch.peers.workers.get_mut(&worker_id),
    ) else {
        return;
    };
    let Some(connection) = worker.connection else {
        return;
    };
    let is_cold = !worker.warm.contains(&job.notebook);
    worker.served.insert(job.notebook);
    let write = job.assign(
        (worker_id, worker.name.clone()),
        is_cold,
        left_ms,
        batch.now,
    );
    batch.write(write);
    let timeout_ms = job.timeout_ms();
    let assignment = Assignment {
        job: id,
        fencing: job.fencing(),
        timeout_ms,
        owner: job.account.owner.clone(),
        environment,
        submission: job.submission.take(),
    };
    batch.push(Action::Assign(connection, assignment));
    let assigned = JobEvent::Assigned {
        worker: worker.name.clone(),
        gpu: worker.has_gpu(),
        timeout_ms,
    };
    append(dispatch, id, vec![assigned], None, batch);
}

fn set_position(
    dispatch: &mut Dispatch,
    ordered: &order::Job,
    position: QueuePosition,
    ahead: &JobsAhead<'_>,
    batch: &mut Batch,
) {
    let id = ordered.job;
    let Some(job) = dispatch.jobs.get(id) else {
        return;
    };
    let now_ms = u64::try_from(batch.now.unix_ms).unwrap_or(0);
    let estimate = dispatch.estimates.of(id);
    let before = job.shown.as_ref().map(|(shown, _)| shown.shown_position);
    let overtakers = estimate.map(|estimate| estimate.overtakers);
    let shown_position = ShownPosition::next(before, position.position, overtakers, now_ms);
    let waiting = Waiting {
        position: shown_position.position,
        last_position: shown_position.last,
        moved_back: shown_position.moved_back(ordered, ahead, now_ms),
        shown_position,
        reason: reason(dispatch, job, &position, batch.now),
        gpu: dispatch.peers.have_gpus(),
        starts_at: estimate.map(|estimate| estimate.starts),
        message: dispatch
            .accounts
            .courses()
            .of(&job.account.course)
            .message
            .clone(),
    };
    if let Some(job) = dispatch.jobs.get_mut(id) {
        // A waiting job's submission is kept only in the store.
        job.submission = None;
        job.waiting = Some(waiting);
    }
    notify_position(dispatch, id, batch);
}

fn reason(dispatch: &Dispatch, job: &Job, position: &QueuePosition, now: Now) -> WaitingReason {
    let starting = match position.reason {
        Reason::NoWorker
        | Reason::NoWorkerFits(_)
        | Reason::WorkersClosed
        | Reason::FittingWorkersBusy(_) => pools::machine_starts(dispatch, job, now),
        Reason::JobsAhead => pools::machine_starts_sooner(dispatch, job, position.position, now),
        _ => None,
    };
    if let Some(starting) = starting {
        return starting;
    }
    let reason = position.reason.clone();
    let course = dispatch.accounts.courses().of(&job.account.course);
    let of = |other: JobId| dispatch.jobs.get(other);
    match reason {
        Reason::JobsAhead => WaitingReason::JobsAhead,
        Reason::Held => WaitingReason::Held {
            why: job.held().unwrap_or(UNCERTAIN).to_owned(),
        },
        Reason::BehindMoved => WaitingReason::BehindMoved {},
        Reason::NoWorker => match pools::unmet_by_pools(dispatch, job) {
            Some(requirement) => needs::no_worker_fits(dispatch, requirement, now),
            None => WaitingReason::NoWorker,
        },
        Reason::CoursePaused => WaitingReason::CoursePaused {
            why: course.paused.clone().unwrap_or_default(),
        },
        Reason::NoWorkerFits(requirement) => needs::no_worker_fits(dispatch, requirement, now),
        Reason::FittingWorkersBusy(requirement) => {
            WaitingReason::FittingWorkersBusy { requirement }
        }
        Reason::WorkersClosed => why_workers_are_closed(dispatch),
        Reason::OwnJobRuns(other) => WaitingReason::OwnJobRuns {
            notebook: of(other).map_or_else(String::new, |other| other.notebook_name.clone()),
        },
        Reason::OwnSession(worker) => WaitingReason::OwnSession {
            worker: dispatch
                .peers
                .workers
                .get(&worker)
                .map_or_else(String::new, |worker| worker.name.clone()),
        },
        Reason::BehindDeadline(other) => WaitingReason::BehindDeadline {
            course: of(other).map_or_else(String::new, |other| other.account.course.clone()),
        },
    }
}

/// The reason that staff gave; otherwise, why the first failing worker (by name) starts no session.
fn why_workers_are_closed(dispatch: &Dispatch) -> WaitingReason {
    let mut workers: Vec<&Worker> = dispatch
        .peers
        .workers
        .values()
        .filter(|worker| worker.connection.is_some())
        .collect();
    workers.sort_unstable_by_key(|worker| &worker.name);
    let drained = |worker: &&Worker| dispatch.accounts.courses().worker_paused(&worker.name);
    let failing = |worker: &&Worker| {
        let why = worker.failing.clone()?;
        Some(WaitingReason::WorkersFail {
            worker: worker.name.clone(),
            why,
        })
    };
    let said = workers.iter().find_map(drained);
    match workers.iter().find_map(failing) {
        Some(failing) if said.is_none() => failing,
        _ => WaitingReason::WorkersPaused {
            why: said.map(str::to_owned),
        },
    }
}

/// Sends a job's position to its proxy if it has changed, at most once a second.
fn notify_position(dispatch: &mut Dispatch, id: JobId, batch: &mut Batch) {
    let Some(connection) = dispatch
        .jobs
        .get(id)
        .and_then(|job| dispatch.peers.subscriber(job))
    else {
        return;
    };
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    let Some(waiting) = &job.waiting else { return };
    if let Some((shown, at)) = &job.shown {
        if !waiting.differs(shown) {
            return;
        }
        let next = *at + NOTIFY_EVERY;
        if next > batch.now.instant {
            dispatch.recheck_at(next);
            return;
        }
    }
    batch.send_proxy(connection, waiting.message(id, batch.now));
    job.shown = Some((waiting.clone(), batch.now.instant));
    if let Some(starts) = waiting.starts_at
        && job.shown_ranges.len() < MOST_RANGES
    {
        job.shown_ranges.push((starts.lower, starts.upper));
    }
}
