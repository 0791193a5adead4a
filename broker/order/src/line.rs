//! What is taken at one moment: by which notebook, which person, on which worker.

use super::{Job, Reason, Worker};
use baton_protocol::{JobId, NotebookId, WorkerId};
use std::{collections::HashMap, sync::Arc};

#[derive(Debug, Clone)]
pub(super) struct Line<'jobs> {
    workers: &'jobs [Worker],
    jobs_per_person: usize,
    busy_notebooks: HashMap<NotebookId, JobId>,
    busy_persons: HashMap<Arc<str>, Vec<JobId>>,
    busy_slots: HashMap<WorkerId, u32>,
}

pub(super) enum Taken {
    By(WorkerId),
    Not(Reason),
}

impl<'jobs> Line<'jobs> {
    pub(super) fn new(jobs: &[Job], workers: &'jobs [Worker], jobs_per_person: u32) -> Self {
        let mut line = Self {
            workers,
            jobs_per_person: jobs_per_person.max(1) as usize,
            busy_notebooks: HashMap::with_capacity(jobs.len()),
            busy_persons: HashMap::with_capacity(jobs.len()),
            busy_slots: HashMap::with_capacity(workers.len()),
        };
        for job in jobs {
            if let Some(worker) = job.worker {
                line.occupy(job, worker);
            }
        }
        line
    }

    /// From here on the job is one of those that are taken, if it can be.
    pub(super) fn take(&mut self, job: &Job) -> Taken {
        if job.held {
            return Taken::Not(Reason::Held);
        }
        if job.paused {
            return Taken::Not(Reason::CoursePaused);
        }
        if let Some(other) = self.busy_notebooks.get(&job.notebook) {
            return Taken::Not(Reason::OwnJobRuns(*other));
        }
        if let Some(others) = self.busy_persons.get(&job.owner)
            && others.len() >= self.jobs_per_person
        {
            return Taken::Not(Reason::OwnJobRuns(others[0]));
        }
        match self.choose_worker(job.notebook) {
            Some(worker) => {
                self.occupy(job, worker);
                Taken::By(worker)
            }
            None if self.workers.is_empty() => Taken::Not(Reason::NoWorker),
            None if self.workers.iter().all(|worker| !worker.open) => {
                Taken::Not(Reason::WorkersPaused)
            }
            None => Taken::Not(Reason::InLine),
        }
    }

    fn occupy(&mut self, job: &Job, worker: WorkerId) {
        self.busy_notebooks.insert(job.notebook, job.job);
        let persons = self.busy_persons.entry(Arc::clone(&job.owner));
        persons.or_default().push(job.job);
        *self.busy_slots.entry(worker).or_default() += 1;
    }

    /// The job that a worker has ends.
    pub(super) fn free(&mut self, job: &Job, worker: WorkerId) {
        self.busy_notebooks.remove(&job.notebook);
        if let Some(jobs) = self.busy_persons.get_mut(&job.owner) {
            jobs.retain(|other| *other != job.job);
        }
        if let Some(slots) = self.busy_slots.get_mut(&worker) {
            *slots = slots.saturating_sub(1);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.workers
            .iter()
            .any(|worker| worker.open && self.busy(worker) < worker.slots)
    }

    fn busy(&self, worker: &Worker) -> u32 {
        self.busy_slots.get(&worker.worker).copied().unwrap_or(0)
    }

    /// The warm session's worker first, then the least loaded one. `None` when no slot is free.
    fn choose_worker(&self, notebook: NotebookId) -> Option<WorkerId> {
        self.workers
            .iter()
            .filter(|worker| worker.open && self.busy(worker) < worker.slots)
            .min_by_key(|worker| {
                let cold = !worker.warm.contains(&notebook);
                let load_per_million =
                    u64::from(self.busy(worker)) * 1_000_000 / u64::from(worker.slots);
                (cold, load_per_million, worker.worker)
            })
            .map(|worker| worker.worker)
    }
}
