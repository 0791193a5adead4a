//! Which job runs next, on which worker, and what waiting people see.
//!
//! In: every unfinished job in order of arrival and every worker that is connected. Out: assignments, and for each
//! job that still waits its place and the first rule that keeps it from running ([`plan`]); and when it may start
//! ([`estimate`]), from what the past tells ([`History`]).
//! What a student is told follows from the same rules that assign, so the two cannot disagree.
//!
//! The order is a weighted fair share: the account with the lowest weighted use runs first. Waiting counts
//! like GPU time that was not used, so every job runs in the end. A notebook runs one job at a time, a
//! person at most `jobs_per_person`, a worker at most `slots`. A notebook whose session holds what no other can have
//! waits a while for that session's worker. A job that one of these rules holds back does not hold up the jobs behind
//! it.
//!
//! A job runs on a worker that meets all it requires ([`Offer`]). Of those, the one with the notebook's warm session
//! comes first, because it lacks only what changed since; then the least loaded one. What a worker without a session
//! has of the state in its cache is not known here.
//!
//! **Invariant:** pure; no clock, no I/O, cannot fail.

mod ahead;
mod estimate;
mod history;
mod occupancy;
mod offer;
mod outlook;
mod shown_position;
mod survival;
mod times;

pub use ahead::ahead_of;
pub use estimate::{Estimation, StartEstimate, estimate_starts};
pub use history::{History, MOST_RUNS, Open, PastRun, Progress, Run};
pub use offer::Offer;
pub use outlook::{CourseOutlook, Expected, Outlook, Returning};
pub use shown_position::ShownPosition;
pub use survival::{Seen, Survival};
pub use times::{Spread, Times};

use baton_protocol::{JobId, NotebookId, Requirement, WorkerId};
use foldhash::{HashMap, HashMapExt};
use occupancy::{Occupancy, Taken};
use std::{collections::HashSet, sync::Arc};

/// Ten seconds of waiting weigh as much as a second of GPU time that was not used.
const WAITING_PER_USE: f64 = 10.0;
/// A job of low priority is ordered as if its account had used this much more.
const LOW_PRIORITY_MS: f64 = 3_600_000.0;

/// How long a job waits for the worker whose session holds what no other can have, before it runs on another.
pub const SESSION_PATIENCE_MS: u64 = 600_000;

/// On whose account a notebook's jobs go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Account {
    pub owner: String,
    /// Empty: none.
    pub course: String,
}

/// An unfinished job.
#[derive(Debug, Clone)]
pub struct Job {
    pub job: JobId,
    pub notebook: NotebookId,
    pub owner: Arc<str>,
    /// The worker that has it, connected or not.
    pub worker: Option<WorkerId>,
    pub precedence: Precedence,
    /// Staff hold it back.
    pub held: bool,
    /// None of its course's jobs is started.
    pub paused: bool,
    /// Staff moved it to the front; the one that was moved last is the first.
    pub front: Option<i64>,
    /// What its worker must be.
    pub needs: Arc<[Requirement]>,
}

/// What decides about the order between two jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precedence {
    /// What the account has used of late, in milliseconds of GPU time.
    pub used_ms: f64,
    /// Of the course. Twice the weight is twice the share.
    pub weight: f64,
    /// What a deadline multiplies the weight by; 1 without one.
    pub boost: f64,
    pub low_priority: bool,
    pub waited_ms: u64,
}

/// A worker that is connected.
#[derive(Debug, Clone)]
pub struct Worker {
    pub worker: WorkerId,
    pub slots: u32,
    /// Notebooks whose session is warm here.
    pub warm: HashSet<NotebookId>,
    /// Those among them whose session holds what no other can have.
    pub keeping: HashSet<NotebookId>,
    /// Takes new jobs: neither paused nor about to leave.
    pub open: bool,
    pub offer: Arc<Offer>,
    /// How long it stays, if its time is limited.
    pub leaves_in_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePosition {
    /// 1 = next in line.
    pub position: u32,
    pub reason: Reason,
}

/// The first rule that keeps a job from running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    Held,
    CoursePaused,
    /// This job of the same notebook or of the same person runs.
    OwnJobRuns(JobId),
    NoWorker,
    /// None is open.
    WorkersClosed,
    /// A job that came later is ahead because of its course's deadline.
    BehindDeadline(JobId),
    /// A job that staff moved to the front is ahead.
    BehindMoved,
    /// The notebook's session on this busy worker holds what no other can have.
    OwnSession(WorkerId),
    /// No worker that is connected meets this.
    NoWorkerFits(Requirement),
    /// The workers that meet this are busy, while others are free.
    FittingWorkersBusy(Requirement),
    JobsAhead,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub assignments: Vec<(JobId, WorkerId)>,
    /// The next one first.
    pub positions: Vec<(JobId, QueuePosition)>,
}

impl Worker {
    /// The first requirement that it does not meet.
    #[must_use]
    pub fn lacks<'needs>(&self, needs: &'needs [Requirement]) -> Option<&'needs Requirement> {
        needs.iter().find(|need| !self.meets(need))
    }

    fn meets(&self, need: &Requirement) -> bool {
        match need {
            Requirement::Time { ms } => self.leaves_in_ms.is_none_or(|left| left >= *ms),
            need => self.offer.meets(need),
        }
    }
}

impl Precedence {
    /// Lower is sooner.
    #[must_use]
    pub fn rank(&self) -> f64 {
        let low = if self.low_priority {
            LOW_PRIORITY_MS
        } else {
            0.0
        };
        (self.used_ms + low) / (self.weight * self.boost) - self.waited_ms as f64 / WAITING_PER_USE
    }
}

/// `jobs` in order of arrival.
#[must_use]
pub fn plan(jobs: &[Job], workers: &[Worker], jobs_per_person: u32) -> Plan {
    let mut occupancy = Occupancy::new(jobs, workers, jobs_per_person);
    let mut assigned = Vec::new();
    let mut waiting = Vec::new();
    let is_boosted = |job: &Job| job.precedence.boost > 1.0 && job.front.is_none();
    // Of those that are ahead because of a deadline the last to arrive: on each worker, and (`None`) in the line.
    let mut boosted: HashMap<Option<WorkerId>, usize> = HashMap::new();
    for (arrival, job) in jobs.iter().enumerate() {
        if job.worker.is_some() && is_boosted(job) {
            boosted.insert(job.worker, arrival);
        }
    }
    let mut moved = false;
    for (arrival, job) in in_order(jobs) {
        let worker = match occupancy.take(job) {
            Taken::By(worker) => {
                assigned.push((job, worker));
                Some(worker)
            }
            Taken::Not(Reason::JobsAhead) if job.front.is_none() => {
                let ahead = boosted
                    .iter()
                    .filter(|(on, _)| on.is_none_or(|worker| occupancy.suits(worker, job)))
                    .map(|(_, other)| *other)
                    .max();
                let reason = match ahead {
                    _ if moved => Reason::BehindMoved,
                    Some(other) if other > arrival && !is_boosted(job) => {
                        Reason::BehindDeadline(jobs[other].job)
                    }
                    _ => Reason::JobsAhead,
                };
                waiting.push((job, reason));
                None
            }
            Taken::Not(reason) => {
                moved |= job.front.is_some();
                waiting.push((job, reason));
                None
            }
        };
        if is_boosted(job) {
            let last = boosted.entry(worker).or_default();
            *last = arrival.max(*last);
        }
    }
    for (job, reason) in &mut waiting {
        if *reason == Reason::JobsAhead
            && let Some(requirement) = occupancy.missing_in_the_free(job)
        {
            *reason = Reason::FittingWorkersBusy(requirement);
        }
    }
    let positions = (1..).zip(waiting);
    let positions =
        positions.map(|(position, (job, reason))| (job.job, QueuePosition { position, reason }));
    Plan {
        assignments: assigned
            .iter()
            .map(|(job, worker)| (job.job, *worker))
            .collect(),
        positions: positions.collect(),
    }
}

/// The waiting jobs, the next one first.
#[must_use]
pub fn in_queue_order(jobs: &[Job]) -> Vec<&Job> {
    in_order(jobs).into_iter().map(|(_, job)| job).collect()
}

/// The waiting jobs, each with its number in order of arrival.
fn in_order(jobs: &[Job]) -> Vec<(usize, &Job)> {
    let waiting = jobs
        .iter()
        .enumerate()
        .filter(|(_, job)| job.worker.is_none());
    let mut waiting: Vec<(usize, &Job)> = waiting.collect();
    let before_rank = |job: &Job| {
        let front = std::cmp::Reverse(job.front);
        (job.held, job.paused, front)
    };
    waiting.sort_by(|(_, one), (_, other)| {
        let rank = || one.precedence.rank().total_cmp(&other.precedence.rank());
        before_rank(one).cmp(&before_rank(other)).then_with(rank)
    });
    waiting
}
