//! The present, as pages show it.

use super::{Dispatch, Job, Phase, Waiting, estimate};
use crate::{Account, MemoryCurve};
use baton_protocol::{
    JobId, JobKind, Machine, NotebookId, WorkerId,
    api::WorkerState,
    worker::{Device, GpuLoad},
};

/// The work of a broker that is not idle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Connected proxies.
    pub proxies: usize,
    /// Queued or running jobs.
    pub unfinished_jobs: usize,
}

impl Activity {
    #[must_use]
    pub fn is_idle(self) -> bool {
        self == Self::default()
    }
}

/// The assumed run time of a cell without any history.
pub(super) const UNKNOWN_RUN_MS: u64 = 30_000;

#[derive(Debug, Default)]
pub struct Overview {
    /// Jobs that are assigned to a worker.
    pub running: usize,
    /// Of the running jobs: those whose cell has not started.
    pub starting: usize,
    /// Jobs that are assigned to no worker.
    pub waiting: usize,
    /// Of the waiting jobs: those that staff hold back, or whose course is paused.
    pub held_back: usize,
    /// The submission time of the job that has waited longest and is not held back.
    pub longest_wait_ms: Option<i64>,
    /// The expected run time of all waiting jobs that are not held back.
    pub waiting_work_ms: u64,
    /// The unfinished jobs, in order of arrival.
    pub jobs: Vec<JobView>,
    /// By name.
    pub workers: Vec<WorkerView>,
}

#[derive(Debug)]
pub struct JobView {
    pub job: JobId,
    pub notebook: NotebookId,
    pub notebook_name: String,
    pub kind: JobKind,
    pub execution_count: Option<u32>,
    pub account: Account,
    pub phase: Phase,
    pub cancel_wanted: bool,
    /// The worker that has it, and the name of this worker.
    pub worker_id: Option<WorkerId>,
    pub worker: Option<String>,
    pub waiting: Option<Waiting>,
    pub submitted_ms: i64,
    pub started_ms: Option<i64>,
    pub timeout_ms: Option<u64>,
    /// Whether staff hold it back.
    pub held: bool,
    /// Whether staff moved it to the front.
    pub front: bool,
    pub memory: MemoryCurve,
}

#[derive(Debug)]
pub struct WorkerView {
    pub id: WorkerId,
    /// Several workers may have chosen the same one.
    pub name: String,
    pub devices: Vec<Device>,
    pub machine: Machine,
    pub connected: bool,
    pub draining: bool,
    /// Why no session starts there.
    pub failing: Option<String>,
    /// Why staff drained it.
    pub paused: Option<String>,
    pub jobs: usize,
    pub slots: u32,
    pub sessions: usize,
    /// Used and total, in bytes.
    pub memory: Option<(u64, u64)>,
    /// Of a connected worker whose driver reports them.
    pub gpus: Vec<GpuLoad>,
}

impl Overview {
    /// The slots of the connected workers that accept cells.
    pub fn open_slots(&self) -> u64 {
        let open = self.workers.iter().filter(|worker| worker.is_open());
        open.map(|worker| u64::from(worker.slots)).sum()
    }

    /// Of the open slots: those without a job.
    pub fn free_slots(&self) -> u64 {
        let open = self.workers.iter().filter(|worker| worker.is_open());
        open.map(|worker| u64::from(worker.slots).saturating_sub(worker.jobs as u64))
            .sum()
    }
}

impl WorkerView {
    pub fn is_open(&self) -> bool {
        self.state() == WorkerState::Connected
    }

    pub fn state(&self) -> WorkerState {
        match (&self.paused, &self.failing) {
            _ if !self.connected => WorkerState::Disconnected,
            _ if self.draining => WorkerState::Leaving,
            (Some(_), _) => WorkerState::Drained,
            (None, Some(_)) => WorkerState::Failing,
            (None, None) => WorkerState::Connected,
        }
    }

    /// The reason for this state.
    pub fn reason(&self) -> Option<&str> {
        self.paused.as_deref().or(self.failing.as_deref())
    }
}

pub(super) fn activity(dispatch: &Dispatch) -> Activity {
    Activity {
        proxies: dispatch
            .peers
            .notebooks
            .values()
            .filter(|notebook| notebook.connection.is_some())
            .count(),
        unfinished_jobs: dispatch.jobs.unfinished().count(),
    }
}

pub(super) fn overview(dispatch: &Dispatch) -> Overview {
    let jobs = dispatch.jobs.in_order(|job| job.phase() != Phase::Finished);
    let mut workers: Vec<WorkerView> = dispatch
        .peers
        .workers
        .iter()
        .map(|(id, worker)| WorkerView {
            id: *id,
            name: worker.name.clone(),
            devices: worker.offer.devices.clone(),
            machine: worker.offer.machine.clone(),
            connected: worker.connection.is_some(),
            draining: worker.draining,
            failing: worker.failing.clone(),
            paused: dispatch
                .accounts
                .courses()
                .worker_paused(&worker.name)
                .map(str::to_owned),
            jobs: dispatch
                .jobs
                .unfinished()
                .filter(|job| job.worker() == Some(*id))
                .count(),
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
    let in_phase = |phase| jobs.iter().filter(move |job| job.phase() == phase);
    let waiting = in_phase(Phase::Queued).count();
    let may_run: Vec<&&Job> = in_phase(Phase::Queued)
        .filter(|job| job.held().is_none())
        .filter(|job| {
            dispatch
                .accounts
                .courses()
                .of(&job.account.course)
                .paused
                .is_none()
        })
        .collect();
    let waiting_work_ms = may_run
        .iter()
        .map(|job| estimate::takes(&dispatch.history, job))
        .map(|takes| takes.map_or(UNKNOWN_RUN_MS, |takes| takes.middle()))
        .sum();
    Overview {
        longest_wait_ms: may_run.iter().map(|job| job.submitted_ms).min(),
        waiting_work_ms,
        running: jobs.len() - waiting,
        starting: in_phase(Phase::Assigned).count(),
        waiting,
        held_back: waiting - may_run.len(),
        jobs: jobs.into_iter().map(|job| view(dispatch, job)).collect(),
        workers,
    }
}

fn view(dispatch: &Dispatch, job: &Job) -> JobView {
    let worker = job
        .worker()
        .and_then(|worker| dispatch.peers.workers.get(&worker));
    JobView {
        job: job.id,
        notebook: job.notebook,
        notebook_name: job.notebook_name.clone(),
        kind: job.kind,
        execution_count: job.execution_count,
        account: job.account.clone(),
        phase: job.phase(),
        cancel_wanted: job.is_cancel_wanted(),
        worker_id: job.worker(),
        worker: worker.map(|worker| worker.name.clone()),
        waiting: job.waiting.clone(),
        submitted_ms: job.submitted_ms,
        started_ms: job.started_ms(),
        timeout_ms: job.timeout_ms(),
        held: job.held().is_some(),
        front: job.front_ms().is_some(),
        memory: job.memory.clone(),
    }
}
