//! The queue for the GPUs. The broker's own library decides which cell begins next, and on which GPU.

use super::super::people::{Usage, job, notebook};
use baton_protocol::{JobId, WorkerId};
use baton_scheduling::queue::{Job, Worker, plan};
use std::{collections::HashSet, sync::Arc, time::Duration};
use uuid::Uuid;

/// Each person has one notebook, and runs one cell at a time.
#[derive(Debug)]
pub(super) struct Queue {
    /// Waiting and running jobs, in order of arrival.
    jobs: Vec<Job>,
    /// One for each GPU.
    workers: Vec<Worker>,
    people: Vec<Person>,
    /// Whether the order depends on each person's recent use, as in the broker; otherwise it is
    /// that of arrival.
    is_fair: bool,
}

#[derive(Debug)]
struct Person {
    owner: Arc<str>,
    since: Duration,
    usage: Usage,
}

impl Queue {
    pub(super) fn new(people: usize, gpus: usize, slots: u32, is_fair: bool) -> Self {
        let worker = |gpu: usize| Worker {
            worker: worker(gpu),
            slots,
            warm: (gpu..people).step_by(gpus).map(notebook).collect(),
            keeping: HashSet::new(),
            open: true,
            offer: Arc::default(),
            leaves_in_ms: None,
        };
        let person = |person: usize| Person {
            owner: person.to_string().into(),
            since: Duration::ZERO,
            usage: Usage::default(),
        };
        Self {
            jobs: Vec::new(),
            workers: (0..gpus).map(worker).collect(),
            people: (0..people).map(person).collect(),
            is_fair,
        }
    }

    pub(super) fn submit(&mut self, person: usize, now: Duration) {
        self.people[person].since = now;
        let owner = Arc::clone(&self.people[person].owner);
        self.jobs.push(job(person, owner));
    }

    /// The person's cell ran for `run`.
    pub(super) fn end(&mut self, person: usize, run: Duration, now: Duration) {
        let ended = |job: &Job| job.notebook == notebook(person);
        let place = self.jobs.iter().position(ended);
        self.jobs.remove(place.expect("it ran"));
        let usage = &mut self.people[person].usage;
        usage.add(run.as_secs_f64(), now.as_secs_f64());
    }

    /// People, and the GPUs on which their cells begin now.
    pub(super) fn begin(&mut self, now: Duration) -> Vec<(usize, usize)> {
        let mut waiting = self.jobs.iter_mut().filter(|job| job.worker.is_none());
        let mut anybody = false;
        for job in &mut waiting {
            anybody = true;
            let person = &self.people[number(job.notebook.0)];
            job.precedence.waited_ms = (now - person.since).as_millis() as u64;
            if self.is_fair {
                job.precedence.used_ms = person.usage.ms(now.as_secs_f64());
            }
        }
        if !anybody {
            return Vec::new();
        }
        let assignments = plan(&self.jobs, &self.workers, 1).assignments;
        for (id, worker) in &assignments {
            let assigned = self.jobs.iter_mut().find(|job| job.job == *id);
            assigned.expect("it waited").worker = Some(*worker);
        }
        let begins = |(job, worker): (JobId, WorkerId)| (number(job.0), number(worker.0));
        assignments.into_iter().map(begins).collect()
    }

    /// Moves the person's session to this GPU.
    pub(super) fn moves(&mut self, person: usize, to: usize) {
        for worker in &mut self.workers {
            worker.warm.remove(&notebook(person));
        }
        self.workers[to].warm.insert(notebook(person));
    }
}

fn worker(gpu: usize) -> WorkerId {
    WorkerId(Uuid::from_u128(gpu as u128))
}

fn number(id: Uuid) -> usize {
    id.as_u128() as usize
}
