//! Which job runs next, on which worker, and what waiting people see.
//!
//! In: every unfinished job in order of arrival, and every connected worker. Out: assignments, and
//! for each job that still waits its position and the first rule that keeps it from running
//! ([`plan`]). Also when it may start ([`estimate`]), judged by the past ([`History`]). What a
//! student sees follows from the same rules that assign jobs, so the two cannot disagree.
//!
//! The order is a weighted fair share: the account with the lowest weighted use runs first. Waiting
//! counts like unused GPU time, so every account gets its turn in the end. It counts from when the
//! account's last run ended, if the job was submitted before that: many waiting jobs bring no more
//! turns than one. A notebook runs one job at a time, a
//! person at most `jobs_per_person`, a worker at most `slots`. If a notebook's session holds
//! objects that no other session can have, its job waits a while for that session's worker. A job
//! that one of these rules holds back does not delay the jobs behind it.
//!
//! A job runs on a worker that meets all of its requirements ([`Offer`]). Of those workers, the one whose session
//! holds what no other session can have comes first, then those that stay for as long as the job is likely to run.
//! Of these, the one with the notebook's warm session comes first, because it lacks only what has changed since; then
//! the least loaded one. Which chunks the caches of the other workers contain is not known here.
//!
//! **Invariant:** pure; no clock, no I/O, cannot fail.

mod ahead;
mod estimate;
mod history;
mod jobs_ahead;
mod occupancy;
mod offer;
mod outlook;
mod shown_position;
mod survival;
mod times;

pub use ahead::ahead_of;
pub use estimate::{Estimation, StartEstimate, estimate_starts};
pub use history::{History, MOST_RUNS, Open, PastRun, Progress, Run};
pub use jobs_ahead::JobsAhead;
pub use offer::{Declared, NO_GPU, Offer};
pub use outlook::{CourseOutlook, Expected, Outlook, Returning};
pub use shown_position::ShownPosition;
pub use survival::{Seen, Survival};
pub use times::{Spread, Times};

use baton_protocol::{JobId, NotebookId, Requirement, WorkerId};
use foldhash::HashMap;
use occupancy::{Occupancy, Taken};
use std::{collections::HashSet, sync::Arc};

/// Ten seconds of waiting count as much as one second of unused GPU time.
const WAITING_PER_USE: f64 = 10.0;
/// A job of low priority is ordered as if its account had used this much more.
const LOW_PRIORITY_MS: f64 = 3_600_000.0;

/// How long a job waits for the worker whose session holds what no other session can have, before
/// it runs on another.
pub const SESSION_PATIENCE_MS: u64 = 600_000;

/// The account that a notebook's jobs are charged to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Account {
    pub owner: String,
    /// Empty if there is none.
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
    /// Staff hold the job.
    pub held: bool,
    /// Whether its course is paused.
    pub paused: bool,
    /// Present if staff moved it to the front. The job that was moved last has the largest number and comes first.
    pub front: Option<i64>,
    /// The requirements for its worker.
    pub needs: Arc<[Requirement]>,
    /// How long it is likely to run, if anything is known about that.
    pub takes_ms: Option<u64>,
}

/// What determines the order of two jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precedence {
    /// The account's recent use, in milliseconds of GPU time.
    pub used_ms: f64,
    /// The course's weight. Twice the weight is twice the share.
    pub weight: f64,
    /// The factor by which a deadline multiplies the weight; 1 without one.
    pub boost: f64,
    pub low_priority: bool,
    /// How long ago the job was submitted.
    pub waited_ms: u64,
    /// How long ago the account's last run ended; `None` if it had none.
    pub since_run_ms: Option<u64>,
}

/// A connected worker.
#[derive(Debug, Clone)]
pub struct Worker {
    pub worker: WorkerId,
    pub slots: u32,
    /// Notebooks whose session is warm here.
    pub warm: HashSet<NotebookId>,
    /// Those of them whose session holds what no other session can have.
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
    /// No worker takes new jobs.
    WorkersClosed,
    /// A job that arrived later is ahead because of its course's deadline.
    BehindDeadline(JobId),
    /// A job that staff moved to the front is ahead.
    BehindMoved,
    /// The notebook's session holds what no other session can have, and this worker, which has it, is busy.
    OwnSession(WorkerId),
    /// No connected worker meets this.
    NoWorkerFits(Requirement),
    /// The workers that meet this are busy, while others are free.
    FittingWorkersBusy(Requirement),
    JobsAhead,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub assignments: Vec<(JobId, WorkerId)>,
    /// In queue order.
    pub positions: Vec<(JobId, QueuePosition)>,
}

impl Worker {
    /// The first requirement that it does not meet.
    #[must_use]
    pub fn lacks<'needs>(&self, needs: &'needs [Requirement]) -> Option<&'needs Requirement> {
        needs.iter().find(|need| !self.meets(need))
    }

    /// Whether it leaves before the job is likely to end.
    #[must_use]
    pub fn leaves_early(&self, job: &Job) -> bool {
        let times = self.leaves_in_ms.zip(job.takes_ms);
        times.is_some_and(|(left, takes)| left < takes)
    }

    fn meets(&self, need: &Requirement) -> bool {
        match need {
            Requirement::Time { ms } => self.leaves_in_ms.is_none_or(|left| left >= *ms),
            need => self.offer.meets(need),
        }
    }
}

impl Precedence {
    /// A lower value runs sooner.
    #[must_use]
    pub fn rank(&self) -> f64 {
        let low = if self.low_priority {
            LOW_PRIORITY_MS
        } else {
            0.0
        };
        let waited_ms = self.waited_for_turn_ms() as f64;
        (self.used_ms + low) / (self.weight * self.boost) - waited_ms / WAITING_PER_USE
    }

    /// Whether both differ at most in how long they have waited.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let waited_ms = other.waited_ms;
        Self { waited_ms, ..*self } == *other
    }

    /// How long the account has waited with this job for its next turn.
    #[must_use]
    pub fn waited_for_turn_ms(&self) -> u64 {
        self.waited_ms.min(self.since_run_ms.unwrap_or(u64::MAX))
    }
}

/// Computes assignments and positions. `jobs` must be in order of arrival.
#[must_use]
pub fn plan(jobs: &[Job], workers: &[Worker], jobs_per_person: u32) -> Plan {
    let mut occupancy = Occupancy::new(jobs, workers, jobs_per_person);
    let mut assigned = Vec::new();
    let mut waiting = Vec::new();
    let mut boosted = Boosted::running(jobs);
    let mut moved = false;
    for (arrival, job) in in_order(jobs) {
        let worker = match occupancy.take(job) {
            Taken::By(worker) => {
                assigned.push((job, worker));
                Some(worker)
            }
            Taken::Not(Reason::JobsAhead) if job.front.is_none() => {
                let reason = match boosted.last_ahead_of(job, &occupancy) {
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
            boosted.add(worker, arrival);
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

/// Whether the job is ahead because of its course's deadline.
fn is_boosted(job: &Job) -> bool {
    job.precedence.boost > 1.0 && job.front.is_none()
}

/// The last to arrive of the jobs that are ahead because of a deadline: on each worker, and (`None`) in the queue.
#[derive(Default)]
struct Boosted(HashMap<Option<WorkerId>, usize>);

impl Boosted {
    fn running(jobs: &[Job]) -> Self {
        let mut boosted = Self::default();
        for (arrival, job) in jobs.iter().enumerate() {
            if job.worker.is_some() && is_boosted(job) {
                boosted.add(job.worker, arrival);
            }
        }
        boosted
    }

    fn add(&mut self, worker: Option<WorkerId>, arrival: usize) {
        let last = self.0.entry(worker).or_default();
        *last = arrival.max(*last);
    }

    /// The last to arrive of those that keep workers from the job.
    fn last_ahead_of(&self, job: &Job, occupancy: &Occupancy<'_>) -> Option<usize> {
        let ahead = self.0.iter();
        ahead
            .filter(|(on, _)| on.is_none_or(|worker| occupancy.suits(worker, job)))
            .map(|(_, arrival)| *arrival)
            .max()
    }
}

/// The waiting jobs, in queue order.
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
