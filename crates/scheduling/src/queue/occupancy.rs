//! Which notebooks, people and slots have a running job at one moment.

use super::{Job, Reason, SESSION_PATIENCE_MS, Worker};
use baton_protocol::{JobId, NotebookId, Requirement, WorkerId};
use foldhash::{HashMap, HashMapExt};

/// Built for each decision, so it neither copies nor allocates for each job.
#[derive(Debug, Clone)]
pub(super) struct Occupancy<'jobs> {
    workers: &'jobs [Worker],
    jobs_per_person: u32,
    busy_notebooks: HashMap<NotebookId, JobId>,
    busy_persons: HashMap<&'jobs str, Jobs>,
    busy_slots: HashMap<WorkerId, u32>,
}

/// A person's running jobs.
#[derive(Debug, Clone, Copy)]
struct Jobs {
    count: u32,
    /// The job that is named as the reason why others wait.
    first: JobId,
}

pub(super) enum Taken {
    By(WorkerId),
    Not(Reason),
}

impl<'jobs> Occupancy<'jobs> {
    pub(super) fn new(jobs: &'jobs [Job], workers: &'jobs [Worker], jobs_per_person: u32) -> Self {
        let mut occupancy = Self {
            workers,
            jobs_per_person: jobs_per_person.max(1),
            busy_notebooks: HashMap::with_capacity(jobs.len()),
            busy_persons: HashMap::with_capacity(jobs.len()),
            busy_slots: HashMap::with_capacity(workers.len()),
        };
        for job in jobs {
            if let Some(worker) = job.worker {
                occupancy.occupy(job, worker);
            }
        }
        occupancy
    }

    /// Gives the job a slot, if the rules allow it.
    pub(super) fn take(&mut self, job: &'jobs Job) -> Taken {
        if job.held {
            return Taken::Not(Reason::Held);
        }
        if job.paused {
            return Taken::Not(Reason::CoursePaused);
        }
        if let Some(requirement) = self.met_by_none(&job.needs) {
            return Taken::Not(Reason::NoWorkerFits(requirement.clone()));
        }
        if let Some(other) = self.busy_notebooks.get(&job.notebook) {
            return Taken::Not(Reason::OwnJobRuns(*other));
        }
        if let Some(others) = self.busy_persons.get(&*job.owner)
            && others.count >= self.jobs_per_person
        {
            return Taken::Not(Reason::OwnJobRuns(others.first));
        }
        if let Some(worker) = self.worker_to_wait_for(job) {
            return Taken::Not(Reason::OwnSession(worker));
        }
        match self.choose_worker(job) {
            Some(worker) => {
                self.occupy(job, worker);
                Taken::By(worker)
            }
            None => Taken::Not(self.why_no_worker(job)),
        }
    }

    /// Whether this worker is connected and meets the job's requirements.
    pub(super) fn suits(&self, worker: WorkerId, job: &Job) -> bool {
        let mut workers = self.workers.iter();
        workers.any(|other| other.worker == worker && fits(job, other))
    }

    fn why_no_worker(&self, job: &Job) -> Reason {
        if self.workers.is_empty() {
            return Reason::NoWorker;
        }
        let mut open = self.workers.iter().filter(|worker| worker.open);
        match open.any(|worker| fits(job, worker)) {
            true => Reason::JobsAhead,
            false => Reason::WorkersClosed,
        }
    }

    /// The requirement that keeps the job from the workers that are still free once all jobs are placed.
    pub(super) fn missing_in_the_free(&self, job: &Job) -> Option<Requirement> {
        let is_free = |worker: &&Worker| worker.open && self.busy(worker) < worker.slots;
        let mut free = self.workers.iter().filter(is_free);
        free.find_map(|worker| worker.lacks(&job.needs)).cloned()
    }

    /// The first requirement that no worker meets together with all requirements before it.
    fn met_by_none<'needs>(&self, needs: &'needs [Requirement]) -> Option<&'needs Requirement> {
        let mut workers = self.workers.iter();
        if self.workers.is_empty() || workers.any(|worker| worker.lacks(needs).is_none()) {
            return None;
        }
        let mut left: Vec<&Worker> = self.workers.iter().collect();
        needs.iter().find(|need| {
            left.retain(|worker| worker.meets(need));
            left.is_empty()
        })
    }

    fn occupy(&mut self, job: &'jobs Job, worker: WorkerId) {
        self.busy_notebooks.insert(job.notebook, job.job);
        let none = Jobs {
            count: 0,
            first: job.job,
        };
        self.busy_persons.entry(&job.owner).or_insert(none).count += 1;
        *self.busy_slots.entry(worker).or_default() += 1;
    }

    fn busy(&self, worker: &Worker) -> u32 {
        self.busy_slots.get(&worker.worker).copied().unwrap_or(0)
    }

    /// The busy worker whose session holds what would be lost on any other.
    fn worker_to_wait_for(&self, job: &Job) -> Option<WorkerId> {
        if job.precedence.waited_ms >= SESSION_PATIENCE_MS {
            return None;
        }
        let keeps = |worker: &&Worker| {
            worker.open && worker.keeping.contains(&job.notebook) && fits(job, worker)
        };
        let worker = self.workers.iter().find(keeps)?;
        (self.busy(worker) >= worker.slots).then_some(worker.worker)
    }

    /// Of the workers that meet the job's requirements, prefers the one whose session cannot move, then those that
    /// stay long enough, then the one with the warm session, then the least loaded one. `None` if no slot is free.
    fn choose_worker(&self, job: &Job) -> Option<WorkerId> {
        self.workers
            .iter()
            .filter(|worker| worker.open && self.busy(worker) < worker.slots)
            .filter(|worker| fits(job, worker))
            .min_by_key(|worker| {
                let moves = !worker.keeping.contains(&job.notebook);
                let cold = !worker.warm.contains(&job.notebook);
                let load_per_million =
                    u64::from(self.busy(worker)) * 1_000_000 / u64::from(worker.slots);
                let early = worker.leaves_early(job);
                (moves, early, cold, load_per_million, worker.worker)
            })
            .map(|worker| worker.worker)
    }
}

fn fits(job: &Job, worker: &Worker) -> bool {
    worker.lacks(&job.needs).is_none()
}
