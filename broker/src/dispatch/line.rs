//! The line: who is assigned, and what those who wait are told.

use super::{Action, Dispatch, Job, Now, Phase, Worker};
use crate::store::Write;
use baton_order::{self as order, Place, Reason, Spread, Standing};
use baton_protocol::{
    JobEvent, JobId, Priority, WorkerId,
    proxy::{Estimate, ToProxy, WaitingReason},
};
use std::time::Duration;
use tokio::time::Instant;

/// A text that changes faster cannot be read.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// An estimate that moves by less is still the same.
const SAME_ESTIMATE_MS: u64 = 2000;

/// For pages: nobody who hears it waits for the job.
const UNCERTAIN: &str =
    "the broker was restarted, and the notebook has not asked for this cell again yet";

/// Where a job stands that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) place: u32,
    pub(crate) reason: WaitingReason,
    /// In milliseconds since 1970.
    starts_at: Option<Spread>,
    pub(crate) message: Option<String>,
}

impl Dispatch {
    /// Assigns what can be assigned and says to all others where they stand. To be called after each batch.
    pub(crate) fn settle(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.retell_at.is_some_and(|at| at <= now.instant) {
            self.disordered = true;
        }
        if !self.disordered {
            return;
        }
        self.refuse_without_budget(now, actions);
        self.disordered = false;
        self.retell_at = None;
        let workers = self.connected_workers();
        let plan = order::plan(&self.line(now), &workers, self.courses.jobs_per_person);
        for (job, worker) in plan.assignments {
            self.assign(job, worker, now, actions);
        }
        for (job, place) in plan.places {
            self.place(job, place, now, actions);
        }
    }

    /// Every unfinished job in order of arrival.
    pub(super) fn line(&self, now: Now) -> Vec<order::Job> {
        let unfinished = self
            .jobs
            .values()
            .filter(|job| job.phase != Phase::Finished);
        let mut jobs: Vec<&Job> = unfinished.collect();
        jobs.sort_unstable_by_key(|job| job.sequence);
        jobs.into_iter()
            .map(|job| self.as_ordered(job, now))
            .collect()
    }

    pub(super) fn as_ordered(&self, job: &Job, now: Now) -> order::Job {
        let course = self.courses.of(&job.account.course);
        let spent = self.spent.get(&job.account).copied().unwrap_or_default();
        let since = |ms: i64| u64::try_from(now.unix_ms.saturating_sub(ms)).unwrap_or(0);
        let already_ms = job.started_ms.map_or(0, since);
        let takes = self
            .history
            .spread(job.cell_key, &job.account, already_ms, job.timeout_ms);
        order::Job {
            job: job.id,
            notebook: job.notebook,
            owner: job.account.owner.as_str().into(),
            worker: job.worker,
            standing: Standing {
                used_ms: spent.faded_ms(now.unix_ms, self.courses.half_life_ms),
                weight: course.weight,
                boost: course.boost(now.unix_ms),
                low_priority: job.priority == Priority::Low,
                waited_ms: since(job.submitted_ms),
            },
            held: job.held.is_some() || job.unclaimed.is_some(),
            paused: course.paused.is_some(),
            front: job.front_ms,
            takes: takes.map(|takes| takes.map(|ms| ms.saturating_sub(already_ms))),
        }
    }

    /// One that cannot start sessions is open only where no other is: then its reason reaches the student.
    pub(super) fn connected_workers(&self) -> Vec<order::Worker> {
        let any_sound = self.any_sound_worker();
        self.workers
            .iter()
            .filter(|(_, worker)| worker.connection.is_some() && !worker.draining)
            .map(|(id, worker)| order::Worker {
                worker: *id,
                slots: worker.slots,
                warm: worker.warm.clone(),
                open: !self.is_paused(worker) && (worker.failing.is_none() || !any_sound),
            })
            .collect()
    }

    /// A worker that takes cells and can start sessions.
    pub(super) fn any_sound_worker(&self) -> bool {
        self.workers.values().any(|worker| {
            let is_there = worker.connection.is_some() && !worker.draining;
            is_there && worker.failing.is_none() && !self.is_paused(worker)
        })
    }

    fn is_paused(&self, worker: &Worker) -> bool {
        self.courses.worker_paused(&worker.name).is_some()
    }

    fn assign(&mut self, id: JobId, worker_id: WorkerId, now: Now, actions: &mut Vec<Action>) {
        let left_ms = self.jobs.get(&id).and_then(|job| {
            let budget = self.budget(&job.account, now)?;
            Some(budget.left.left_ms)
        });
        let (Some(job), Some(worker)) = (self.jobs.get_mut(&id), self.workers.get(&worker_id))
        else {
            return;
        };
        let Some(connection) = worker.connection else {
            return;
        };
        job.phase = Phase::Assigned;
        job.worker = Some(worker_id);
        job.fencing += 1;
        job.acknowledged = 0;
        job.waiting = None;
        job.told = None;
        job.timeout_ms = [job.timeout_ms, left_ms].into_iter().flatten().min();
        let timeout_ms = job.timeout_ms;
        actions.push(Action::Write(Write::Assign {
            job: id,
            worker: worker_id,
            worker_name: worker.name.clone(),
            fencing: job.fencing,
            timeout_ms,
            at_ms: now.unix_ms,
        }));
        actions.push(Action::Assign {
            connection,
            job: id,
            fencing: job.fencing,
            timeout_ms,
            owner: job.account.owner.clone(),
            submission: job.submission.take(),
        });
        let worker = worker.name.clone();
        let assigned = JobEvent::Assigned { worker, timeout_ms };
        self.append(id, vec![assigned], None, actions);
    }

    fn place(&mut self, id: JobId, place: Place, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let now_ms = u64::try_from(now.unix_ms).unwrap_or(0);
        let waiting = Waiting {
            place: place.place,
            reason: self.reason(job, place.reason),
            starts_at: place
                .starts_in
                .map(|starts| starts.map(|ms| ms.saturating_add(now_ms))),
            message: self.courses.of(&job.account.course).message.clone(),
        };
        if let Some(job) = self.jobs.get_mut(&id) {
            // It waits: from now on its submission lies in the store only.
            job.submission = None;
            job.waiting = Some(waiting);
        }
        self.tell(id, now, actions);
    }

    fn reason(&self, job: &Job, reason: Reason) -> WaitingReason {
        let course = self.courses.of(&job.account.course);
        let of = |other: &JobId| self.jobs.get(other);
        match reason {
            Reason::InLine => WaitingReason::InLine,
            Reason::Held => WaitingReason::Held {
                why: job.held.clone().unwrap_or_else(|| UNCERTAIN.to_owned()),
            },
            Reason::BehindMoved => WaitingReason::BehindMoved {},
            Reason::NoWorker => WaitingReason::NoWorker,
            Reason::CoursePaused => WaitingReason::CoursePaused {
                why: course.paused.clone().unwrap_or_default(),
            },
            Reason::WorkersPaused => WaitingReason::WorkersPaused {
                why: self.why_workers_are_paused(),
            },
            Reason::OwnJobRuns(other) => WaitingReason::OwnJobRuns {
                notebook: of(&other).map_or_else(String::new, |other| other.notebook_name.clone()),
            },
            Reason::BehindDeadline(other) => WaitingReason::BehindDeadline {
                course: of(&other).map_or_else(String::new, |other| other.account.course.clone()),
            },
        }
    }

    fn why_workers_are_paused(&self) -> Option<String> {
        let mut workers: Vec<&str> = self
            .workers
            .values()
            .filter(|worker| worker.connection.is_some())
            .map(|worker| worker.name.as_str())
            .collect();
        workers.sort_unstable();
        let mut reasons = workers
            .into_iter()
            .filter_map(|name| self.courses.worker_paused(name));
        reasons.next().map(str::to_owned)
    }

    /// Says to the proxy where its job stands, if that differs from what was said last; at most once a second.
    fn tell(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let Some(connection) = self.subscriber(id) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Some(waiting) = &job.waiting else { return };
        if let Some((told, at)) = &job.told {
            if !waiting.differs(told) {
                return;
            }
            let next = *at + TELL_EVERY;
            if next > now.instant {
                let earlier = self.retell_at.map_or(next, |at: Instant| at.min(next));
                self.retell_at = Some(earlier);
                return;
            }
        }
        actions.push(Action::ToProxy(connection, waiting.message(id, now)));
        job.told = Some((waiting.clone(), now.instant));
    }
}

impl Waiting {
    pub(super) fn message(&self, job: JobId, now: Now) -> ToProxy {
        ToProxy::Place {
            job,
            place: self.place,
            waiting: self.reason.clone(),
            estimate: self.estimate(now.unix_ms),
            message: self.message.clone(),
        }
    }

    pub(crate) fn estimate(&self, now_ms: i64) -> Option<Estimate> {
        let now_ms = u64::try_from(now_ms).unwrap_or(0);
        let starts = self.starts_at?.map(|ms| ms.saturating_sub(now_ms));
        Some(Estimate {
            lower_ms: starts.lower,
            middle_ms: starts.middle,
            upper_ms: starts.upper,
        })
    }

    fn differs(&self, told: &Self) -> bool {
        let moved = match (self.starts_at, told.starts_at) {
            (Some(one), Some(other)) => {
                let far = |one: u64, other: u64| one.abs_diff(other) > SAME_ESTIMATE_MS;
                far(one.lower, other.lower)
                    || far(one.middle, other.middle)
                    || far(one.upper, other.upper)
            }
            (one, other) => one.is_some() != other.is_some(),
        };
        moved
            || self.place != told.place
            || self.reason != told.reason
            || self.message != told.message
    }
}
