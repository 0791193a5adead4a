//! The open jobs, and the notebooks of closed ones.

use super::Job;
use crate::{
    Account,
    record::{Phase, Write},
};
use baton_protocol::{JobId, NotebookId, Submission};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

#[derive(Debug, Clone)]
pub(super) struct Jobs {
    open: HashMap<JobId, Job>,
    /// The notebook of each closed job whose row is not yet deleted.
    closed: HashMap<JobId, NotebookId>,
    next_sequence: u64,
}

impl Jobs {
    pub(super) fn new(
        open: impl IntoIterator<Item = Job>,
        closed: HashMap<JobId, NotebookId>,
        next_sequence: u64,
    ) -> Self {
        Self {
            open: open.into_iter().map(|job| (job.id, job)).collect(),
            closed,
            next_sequence,
        }
    }

    pub(super) fn get(&self, id: JobId) -> Option<&Job> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.open.get_mut(&id)
    }

    /// In no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.open.values()
    }

    /// The jobs that satisfy `holds`, in order of arrival.
    pub(super) fn in_order(&self, holds: impl Fn(&Job) -> bool) -> Vec<&Job> {
        let mut jobs: Vec<&Job> = self.iter().filter(|job| holds(job)).collect();
        jobs.sort_unstable_by_key(|job| job.sequence);
        jobs
    }

    /// The ids of the jobs that satisfy `holds`, in no order. Callers may change the jobs meanwhile.
    pub(super) fn ids(&self, holds: impl Fn(&Job) -> bool) -> Vec<JobId> {
        let jobs = self.iter().filter(|job| holds(job));
        jobs.map(|job| job.id).collect()
    }

    pub(super) fn unfinished(&self) -> impl Iterator<Item = &Job> {
        self.iter().filter(|job| job.phase() != Phase::Finished)
    }

    /// The notebook of a closed job.
    pub(super) fn closed(&self, id: JobId) -> Option<NotebookId> {
        self.closed.get(&id).copied()
    }

    /// Whether the job is open or closed here.
    pub(super) fn knows(&self, id: JobId) -> bool {
        self.open.contains_key(&id) || self.closed.contains_key(&id)
    }

    /// Adds a job in phase `queued`, and returns what to store.
    pub(super) fn add(
        &mut self,
        submission: Arc<Submission>,
        account: Account,
        now_ms: i64,
    ) -> Write {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let job = Job::new(Arc::clone(&submission), account.clone(), sequence, now_ms);
        self.open.insert(job.id, job);
        Write::Submit {
            sequence,
            account,
            submission,
            at_ms: now_ms,
        }
    }

    pub(super) fn remove(&mut self, id: JobId) -> Option<Job> {
        self.open.remove(&id)
    }

    /// The job is closed and must not be submitted again.
    pub(super) fn remember_closed(&mut self, id: JobId, notebook: NotebookId) {
        self.closed.insert(id, notebook);
    }

    /// Removes closed jobs whose rows are deleted.
    pub(super) fn forget(&mut self, jobs: &[JobId]) {
        for job in jobs {
            self.closed.remove(job);
        }
    }

    /// The notebooks of all jobs, open or closed.
    pub(super) fn notebooks(&self) -> HashSet<NotebookId> {
        let open = self.open.values().map(|job| job.notebook);
        open.chain(self.closed.values().copied()).collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    #[cfg(test)]
    pub(super) fn count_closed(&self) -> usize {
        self.closed.len()
    }
}
