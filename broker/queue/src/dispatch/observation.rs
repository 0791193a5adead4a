//! What operators read in the broker's log about a decision.

use crate::record::Phase;
use baton_protocol::{JobId, WorkerId};
use std::fmt;

/// An event for the log. The caller of [`super::Dispatch`] writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// A worker knows more about a job than is stored.
    RecordsLost(JobId),
    /// A notebook says that it has received more events of its job than are stored.
    NotebookIsAhead {
        job: JobId,
        /// Empty if the broker does not know the person.
        person: String,
        claimed: u64,
        stored: u64,
    },
    GoesOnWithoutKernel(JobId),
    /// Its notebook is silent and may return.
    AwaitsReturn(JobId),
    MessageRefused {
        job: JobId,
        why: String,
    },
    /// A second process connected with the token of a worker that is already connected.
    SecondWorker {
        worker: String,
    },
    WorkerStaysAway {
        worker: String,
    },
    CannotStartSessions {
        worker: String,
        environment: Option<String>,
        why: String,
    },
    /// A worker has another lock of an environment than the stored one, which `other` has.
    OtherLock {
        worker: String,
        environment: String,
        other: String,
    },
    ImpossibleReport {
        worker: String,
        what: &'static str,
    },
    ImpossibleUsage {
        job: JobId,
        worker: String,
        run_ms: u64,
        wall_ms: i64,
    },
    EventsMissing {
        job: JobId,
        worker: WorkerId,
        first: u64,
        acknowledged: u64,
    },
    UnexpectedEvent {
        job: JobId,
        phase: Phase,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Information,
    Warning,
    Error,
}

impl Observation {
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::RecordsLost(_) => Severity::Error,
            Self::GoesOnWithoutKernel(_) | Self::AwaitsReturn(_) => Severity::Information,
            _ => Severity::Warning,
        }
    }

    /// The job that it is about.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::RecordsLost(job)
            | Self::GoesOnWithoutKernel(job)
            | Self::AwaitsReturn(job)
            | Self::NotebookIsAhead { job, .. }
            | Self::MessageRefused { job, .. }
            | Self::ImpossibleUsage { job, .. }
            | Self::EventsMissing { job, .. }
            | Self::UnexpectedEvent { job, .. } => Some(*job),
            _ => None,
        }
    }

    /// The name of the worker that it is about.
    #[must_use]
    pub fn worker(&self) -> Option<&str> {
        match self {
            Self::SecondWorker { worker }
            | Self::WorkerStaysAway { worker }
            | Self::CannotStartSessions { worker, .. }
            | Self::OtherLock { worker, .. }
            | Self::ImpossibleReport { worker, .. }
            | Self::ImpossibleUsage { worker, .. } => Some(worker),
            _ => None,
        }
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordsLost(job) => write!(
                formatter,
                "The database lost its latest changes, including those of job {job}, which will not run again"
            ),
            Self::NotebookIsAhead {
                job,
                person,
                claimed,
                stored,
            } => write!(
                formatter,
                "A notebook of {person:?} says that it has event {claimed} of job {job}, of which {stored} are stored; \
                 the job ends. If the notebooks of several people do, the database may have lost its latest changes"
            ),
            Self::GoesOnWithoutKernel(job) => {
                write!(formatter, "Job {job} goes on without its notebook kernel")
            }
            Self::AwaitsReturn(job) => write!(
                formatter,
                "The notebook of job {job} does not respond; the job's result waits for its return"
            ),
            Self::MessageRefused { job, why } => {
                write!(formatter, "Refused a message about job {job}: {why}")
            }
            Self::SecondWorker { worker } => write!(
                formatter,
                "Another worker with the token of {worker} is refused"
            ),
            Self::WorkerStaysAway { worker } => {
                write!(formatter, "Worker {worker} did not reconnect")
            }
            Self::CannotStartSessions {
                worker,
                environment: Some(environment),
                why,
            } => write!(
                formatter,
                "Worker {worker} cannot start sessions in the environment {environment}: {why}"
            ),
            Self::CannotStartSessions { worker, why, .. } => {
                write!(formatter, "Worker {worker} cannot start sessions: {why}")
            }
            Self::OtherLock {
                worker,
                environment,
                other,
            } => write!(
                formatter,
                "Worker {worker} has another lock of the environment {environment} than worker {other}. \
                 Notebooks keep the lock of {other} until no worker has it"
            ),
            Self::ImpossibleReport { worker, what } => write!(
                formatter,
                "Ignoring an impossible {what} from worker {worker}"
            ),
            Self::ImpossibleUsage {
                worker,
                run_ms,
                wall_ms,
                ..
            } => write!(
                formatter,
                "Worker {worker} reports {run_ms} ms of GPU time for a cell that ran for {wall_ms} ms; the cell is charged for its run time"
            ),
            Self::EventsMissing {
                job,
                worker,
                first,
                acknowledged,
            } => write!(
                formatter,
                "Worker {worker} sent event {first} of job {job} after event {acknowledged}"
            ),
            Self::UnexpectedEvent { job, phase } => write!(
                formatter,
                "An event of job {job} arrived while it was {}",
                phase.name()
            ),
        }
    }
}
