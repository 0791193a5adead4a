//! A job: what to run, and how it ended.

use crate::{GroupId, JobId, NotebookId, State, files::NotebookFolder};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Everything that a worker needs to run one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    pub job: JobId,
    pub notebook: NotebookId,
    /// The notebook's name on pages for people, for example its file name.
    pub notebook_name: String,
    /// Identifies later runs of the same cell.
    pub cell_key: Option<CellKey>,
    pub priority: Priority,
    /// The group of jobs that were made together, for people who list or cancel them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    pub cell: Cell,
    pub state: State,
}

/// The same for the same code of the same person. The code cannot be derived from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CellKey(#[serde(with = "serde_bytes")] pub [u8; 16]);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    #[default]
    Normal,
    /// Batch work: other jobs run first, for a while.
    Low,
}

/// What a job runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    #[default]
    Cell,
    /// A cell, or a call of an `@gpu` function, that runs while its notebook goes on.
    Background,
    /// A `with gpu:` block.
    Block,
    /// A call of an `@gpu` function.
    Call,
    /// All cells of a notebook, in a kernel of their own.
    Notebook,
    Script,
    /// Some of the calls of one `gpu.map`.
    Map,
}

impl JobKind {
    pub const ALL: [Self; 7] = [
        Self::Cell,
        Self::Background,
        Self::Block,
        Self::Call,
        Self::Notebook,
        Self::Script,
        Self::Map,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cell => "cell",
            Self::Background => "background",
            Self::Block => "block",
            Self::Call => "call",
            Self::Notebook => "notebook",
            Self::Script => "script",
            Self::Map => "map",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What messages to its owner call it. A `gpu.map` is a call, which has several jobs.
    #[must_use]
    pub fn noun(self) -> &'static str {
        match self {
            Self::Cell | Self::Background => "cell",
            Self::Block => "block",
            Self::Call | Self::Map => "call",
            Self::Notebook | Self::Script => "run",
        }
    }

    /// Whether it is a notebook's cell, or part of one.
    #[must_use]
    pub fn is_of_cell(self) -> bool {
        !matches!(self, Self::Notebook | Self::Script | Self::Map)
    }

    /// Whether it is a program with many parts, where perhaps only some need a GPU.
    #[must_use]
    pub fn is_program(self) -> bool {
        matches!(self, Self::Notebook | Self::Script)
    }

    /// Whether it goes on after its notebook kernel has ended.
    #[must_use]
    pub fn outlives_kernel(self) -> bool {
        self == Self::Background
    }

    pub(crate) fn is_cell(&self) -> bool {
        *self == Self::Cell
    }
}

/// A job whose id the client of a kernel chooses before it is submitted. As text, `KIND:JOB` or
/// `KIND:JOB:GROUP`, it is the `msg_id` of the client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientJob {
    pub id: JobId,
    pub kind: JobKind,
    pub group: Option<GroupId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not KIND:JOB or KIND:JOB:GROUP")]
pub struct ClientJobError;

impl ClientJob {
    /// A job for a client that chooses no ids.
    #[must_use]
    pub fn random(kind: JobKind) -> Self {
        Self {
            id: JobId::random(),
            kind,
            group: None,
        }
    }
}

impl fmt::Display for ClientJob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.kind.name(), self.id)?;
        match self.group {
            Some(group) => write!(formatter, ":{group}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ClientJob {
    type Err = ClientJobError;

    fn from_str(text: &str) -> Result<Self, ClientJobError> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next();
        let kind = next().and_then(JobKind::from_name);
        let id = next().and_then(|id| id.parse().ok());
        let group = next().map(|group| group.parse().map_err(|_| ClientJobError));
        Ok(Self {
            kind: kind.ok_or(ClientJobError)?,
            id: id.ok_or(ClientJobError)?,
            group: group.transpose()?,
        })
    }
}

/// The cell as the session's IPython kernel receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The source code, preceded by as many lines as in the notebook.
    pub code: String,
    /// The `msg_id` of the notebook's request, so that outputs name the right parent.
    pub message_id: String,
    pub execution_count: u32,
    /// What the code is, for people and reports.
    #[serde(default, skip_serializing_if = "JobKind::is_cell")]
    pub kind: JobKind,
    pub silent: bool,
    /// Whether the client that sent the cell answers `input()`.
    pub allow_stdin: bool,
    /// The notebook kernel's Python, for a worker that serves the same person on the same machine.
    pub python: String,
    /// `major.minor` of that Python: bytecode is not portable between versions.
    pub python_version: String,
    /// The notebook kernel's working directory.
    pub folder: String,
    /// The working directory in which the notebook kernel started. None if its name is not Unicode.
    pub notebook_folder: Option<Box<NotebookFolder>>,
    /// The cell's time limit, without its time in the queue. The proxy sends what the student asked
    /// for; the broker sets what is granted.
    pub timeout_ms: Option<u64>,
    /// The longest time limit that the student may ask for. Set by the broker.
    pub longest_timeout_ms: Option<u64>,
    /// The most GPU memory that the session may allocate while the cell runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// The GPU that the student asked for: words of its model, such as `a100`, or a label of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The environment of the course that the student chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    /// The cell raised an exception. Its changes up to then are returned.
    Error,
    /// An interrupt reached the cell, or the job was cancelled before it started.
    Cancelled,
    TimedOut,
    OutOfMemory,
    /// The cell did not run: the worker could not read the state, the Python differs, or a package is missing.
    Refused,
    /// The worker or session died; nothing is returned.
    WorkerLost,
}

impl Outcome {
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Error,
        Self::Cancelled,
        Self::TimedOut,
        Self::OutOfMemory,
        Self::Refused,
        Self::WorkerLost,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory => "out_of_memory",
            Self::Refused => "refused",
            Self::WorkerLost => "worker_lost",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }
}

/// An exception as the kernel that raised it describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteError {
    pub name: String,
    pub value: String,
    /// Lines ready to be shown, with their colours. Empty when the error is Baton's own.
    pub traceback: Vec<String>,
    /// What the student can do about it.
    pub hint: Option<String>,
}

impl RemoteError {
    /// The name of the error of a job that did not start because its notebook did not answer its worker.
    pub const NOTEBOOK_SILENT: &str = "NotebookSilent";

    /// An error that Baton itself reports.
    pub fn of_baton(name: &str, value: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            value: value.into(),
            traceback: Vec::new(),
            hint: Some(hint.into()),
        }
    }
}

/// What a person has left in a course with a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetLeft {
    pub left_ms: u64,
    /// Includes `granted_ms`.
    pub of_ms: u64,
    /// What staff granted beyond the budget of the course.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub granted_ms: u64,
    pub period: Period,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The time between two resets of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Day,
    Week,
}

impl Period {
    /// The period that contains now.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Day => "today",
            Self::Week => "this week",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub run_ms: u64,
    /// Largest resident memory of the session's processes during the cell.
    pub peak_memory_bytes: u64,
    /// Present if sessions time-share the GPU and the cell used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUsage>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// How long the session held the GPU.
    pub held_ms: u64,
    /// How long it had work for the GPU but no lease.
    pub waited_ms: u64,
    /// How often its memory returned to the GPU.
    pub swaps: u64,
    /// The most memory that it had allocated on the GPU.
    pub peak_memory_bytes: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_job_of_a_client_is_read_from_its_text() {
        let one = ClientJob {
            kind: JobKind::Notebook,
            ..ClientJob::random(JobKind::Cell)
        };
        let of_group = ClientJob {
            group: Some(GroupId::random()),
            ..one
        };
        for job in [one, of_group] {
            assert_eq!(job.to_string().parse(), Ok(job));
        }
        let id = one.id;
        for text in [
            "".to_owned(),
            "5c1e_7".to_owned(),
            "notebook".to_owned(),
            "notebook:1".to_owned(),
            format!("page:{id}"),
            format!("cell:{id}:"),
            format!("cell:{id}:{id}:"),
        ] {
            assert_eq!(text.parse::<ClientJob>(), Err(ClientJobError), "{text}");
        }
    }
}
