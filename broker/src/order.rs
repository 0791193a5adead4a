//! Who runs next, and where.
//!
//! In: every unfinished job in order of arrival and every worker that is connected. Out: assignments, and for each
//! job that still waits its place and the first rule that keeps it from running.
//! What a student is told comes from the same pass that assigns, so the two cannot disagree.
//!
//! First come, first served, with two rules: a notebook runs one job at a time, and a worker runs at most `slots`.
//! A job that waits for its own notebook does not hold up the jobs behind it.
//!
//! **Invariant:** pure; no clock, no I/O, cannot fail.

use baton_protocol::{JobId, NotebookId, WorkerId, proxy::WaitingReason};
use std::collections::{HashMap, HashSet};

/// An unfinished job.
#[derive(Debug, Clone)]
pub struct Job {
    pub job: JobId,
    pub notebook: NotebookId,
    /// The worker that has it, connected or not.
    pub worker: Option<WorkerId>,
}

/// A worker that takes jobs: connected, and not about to leave.
#[derive(Debug, Clone)]
pub struct Worker {
    pub worker: WorkerId,
    pub slots: u32,
    /// Notebooks whose session is warm here.
    pub warm: HashSet<NotebookId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// 1 = next in line.
    pub place: u32,
    pub waiting: WaitingReason,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub assignments: Vec<(JobId, WorkerId)>,
    pub places: Vec<(JobId, Place)>,
}

/// `jobs` in order of arrival.
#[must_use]
pub fn plan(jobs: &[Job], workers: &[Worker]) -> Plan {
    let mut busy_notebooks: HashSet<NotebookId> = HashSet::new();
    let mut busy_slots: HashMap<WorkerId, u32> = HashMap::new();
    for job in jobs {
        if let Some(worker) = job.worker {
            busy_notebooks.insert(job.notebook);
            *busy_slots.entry(worker).or_default() += 1;
        }
    }

    let mut plan = Plan::default();
    for job in jobs.iter().filter(|job| job.worker.is_none()) {
        let waiting = if busy_notebooks.contains(&job.notebook) {
            WaitingReason::OwnJobRuns
        } else if let Some(worker) = choose_worker(job.notebook, workers, &busy_slots) {
            busy_notebooks.insert(job.notebook);
            *busy_slots.entry(worker).or_default() += 1;
            plan.assignments.push((job.job, worker));
            continue;
        } else if workers.is_empty() {
            WaitingReason::NoWorker
        } else {
            WaitingReason::InLine
        };
        let place = u32::try_from(plan.places.len() + 1).unwrap_or(u32::MAX);
        plan.places.push((job.job, Place { place, waiting }));
    }
    plan
}

/// The warm session's worker first, then the least loaded one. `None` when no slot is free.
fn choose_worker(
    notebook: NotebookId,
    workers: &[Worker],
    busy_slots: &HashMap<WorkerId, u32>,
) -> Option<WorkerId> {
    let busy = |worker: &Worker| busy_slots.get(&worker.worker).copied().unwrap_or(0);
    workers
        .iter()
        .filter(|worker| busy(worker) < worker.slots)
        .min_by_key(|worker| {
            let cold = !worker.warm.contains(&notebook);
            let load_per_million = u64::from(busy(worker)) * 1_000_000 / u64::from(worker.slots);
            (cold, load_per_million, worker.worker)
        })
        .map(|worker| worker.worker)
}
