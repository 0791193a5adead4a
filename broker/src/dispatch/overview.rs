//! What the pages show of the present.

use super::{Dispatch, Job, MemoryCurve, Now, Phase, Waiting};
use crate::people::Account;
use baton_protocol::{
    JobId, NotebookId,
    api::WorkerState,
    worker::{Device, GpuLoad},
};

/// A cell of which nothing is known.
const UNKNOWN_RUN_MS: u64 = 30_000;

#[derive(Debug, Default)]
pub(crate) struct Overview {
    /// Of all unfinished jobs.
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Since when the one waits that has waited longest.
    pub(crate) longest_wait_ms: Option<i64>,
    /// What those who may run are likely to take.
    pub(crate) waiting_work_ms: u64,
    /// Unfinished, in order of arrival.
    pub(crate) jobs: Vec<JobView>,
    /// By name.
    pub(crate) workers: Vec<WorkerView>,
}

#[derive(Debug)]
pub(crate) struct JobView {
    pub(crate) job: JobId,
    pub(crate) notebook: NotebookId,
    pub(crate) notebook_name: String,
    pub(crate) execution_count: Option<u32>,
    pub(crate) account: Account,
    pub(crate) phase: Phase,
    pub(crate) cancel_wanted: bool,
    pub(crate) worker: Option<String>,
    pub(crate) waiting: Option<Waiting>,
    pub(crate) submitted_ms: i64,
    pub(crate) started_ms: Option<i64>,
    pub(crate) timeout_ms: Option<u64>,
    /// Staff hold it back.
    pub(crate) held: bool,
    /// Staff moved it to the front.
    pub(crate) front: bool,
    pub(crate) memory: MemoryCurve,
}

#[derive(Debug)]
pub(crate) struct WorkerView {
    pub(crate) name: String,
    pub(crate) devices: Vec<Device>,
    pub(crate) connected: bool,
    pub(crate) draining: bool,
    /// Why no session starts there.
    pub(crate) failing: Option<String>,
    /// Why it takes nothing new.
    pub(crate) paused: Option<String>,
    pub(crate) jobs: usize,
    pub(crate) slots: u32,
    pub(crate) sessions: usize,
    /// Used and whole, in bytes.
    pub(crate) memory: Option<(u64, u64)>,
    /// Of a connected worker whose driver tells.
    pub(crate) gpus: Vec<GpuLoad>,
}

impl Overview {
    /// Of the connected workers that take cells.
    pub(crate) fn open_slots(&self) -> u64 {
        let open = self.workers.iter().filter(|worker| worker.is_open());
        open.map(|worker| u64::from(worker.slots)).sum()
    }
}

impl WorkerView {
    pub(crate) fn is_open(&self) -> bool {
        self.state() == WorkerState::Connected
    }

    pub(crate) fn state(&self) -> WorkerState {
        match (&self.paused, &self.failing) {
            _ if !self.connected => WorkerState::Away,
            _ if self.draining => WorkerState::Leaving,
            (Some(_), _) => WorkerState::Paused,
            (None, Some(_)) => WorkerState::Failing,
            (None, None) => WorkerState::Connected,
        }
    }

    /// Of this state.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.paused.as_deref().or(self.failing.as_deref())
    }
}

impl Dispatch {
    pub(crate) fn overview(&self, now: Now) -> Overview {
        let unfinished = || {
            self.jobs
                .values()
                .filter(|job| job.phase != Phase::Finished)
        };
        let mut jobs: Vec<&Job> = unfinished().collect();
        jobs.sort_unstable_by_key(|job| job.sequence);
        let mut workers: Vec<WorkerView> = self
            .workers
            .iter()
            .map(|(id, worker)| WorkerView {
                name: worker.name.clone(),
                devices: worker.devices.clone(),
                connected: worker.connection.is_some(),
                draining: worker.draining,
                failing: worker.failing.clone(),
                paused: self.courses.worker_paused(&worker.name).map(str::to_owned),
                jobs: unfinished().filter(|job| job.worker == Some(*id)).count(),
                slots: worker.slots,
                sessions: worker.warm.len(),
                memory: worker.memory,
                gpus: match worker.connection {
                    Some(_) => worker.gpus.clone(),
                    None => Vec::new(),
                },
            })
            .collect();
        workers.sort_by(|one, other| one.name.cmp(&other.name));
        let waiting = jobs.iter().filter(|job| job.phase == Phase::Queued).count();
        let queued = jobs.iter().filter(|job| job.phase == Phase::Queued);
        let longest_wait_ms = queued.map(|job| job.submitted_ms).min();
        let waiting_work_ms = jobs
            .iter()
            .filter(|job| job.phase == Phase::Queued && job.held.is_none())
            .filter(|job| self.courses.of(&job.account.course).paused.is_none())
            .map(|job| self.as_ordered(job, now).takes)
            .map(|takes| takes.map_or(UNKNOWN_RUN_MS, |takes| takes.middle))
            .sum();
        Overview {
            longest_wait_ms,
            waiting_work_ms,
            running: jobs.len() - waiting,
            waiting,
            jobs: jobs.into_iter().map(|job| self.view(job)).collect(),
            workers,
        }
    }

    fn view(&self, job: &Job) -> JobView {
        let worker = job.worker.and_then(|worker| self.workers.get(&worker));
        JobView {
            job: job.id,
            notebook: job.notebook,
            notebook_name: job.notebook_name.clone(),
            execution_count: job.execution_count,
            account: job.account.clone(),
            phase: job.phase,
            cancel_wanted: job.cancel_wanted,
            worker: worker.map(|worker| worker.name.clone()),
            waiting: job.waiting.clone(),
            submitted_ms: job.submitted_ms,
            started_ms: job.started_ms,
            timeout_ms: job.timeout_ms,
            held: job.held.is_some(),
            front: job.front_ms.is_some(),
            memory: job.memory.clone(),
        }
    }
}
