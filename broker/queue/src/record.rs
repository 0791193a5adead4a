//! What is stored about jobs: the changes, and what a restarted broker loads.
//!
//! **Invariant:** pure.

use crate::{
    courses::{Allowance, Changes},
    spent::Spent,
    stop_reason::StopReason,
};
use baton_protocol::{
    CellKey, FencingNumber, JobId, JobKind, Lock, NotebookId, NumberedEvent, Outcome, Priority,
    RemoteError, Requirement, State, Submission, Usage, WorkerId,
    api::{self, CourseChange},
    worker::Device,
};
use baton_scheduling::queue::{Account, PastRun};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// One change. If the stored job is not in the required state, the store refuses it with a conflict.
#[derive(Debug)]
pub enum Write {
    Submit {
        sequence: u64,
        account: Account,
        submission: Arc<Submission>,
        at_ms: i64,
    },
    /// `queued -> assigned`
    Assign {
        job: JobId,
        worker: WorkerId,
        worker_name: String,
        fencing: FencingNumber,
        timeout_ms: Option<u64>,
        at_ms: i64,
    },
    /// `assigned -> queued`
    Requeue {
        job: JobId,
        fencing: FencingNumber,
    },
    /// `assigned -> started`
    Start {
        job: JobId,
        fencing: FencingNumber,
        at_ms: i64,
    },
    Events {
        job: JobId,
        /// The number of the last of these events, in the worker's count; `None` for the broker's own events.
        acknowledged: Option<u64>,
        events: Vec<NumberedEvent>,
    },
    /// Deletes outputs and questions up to this number, because an open job has too many. At least one later output or
    /// question stays.
    DropOutputs {
        job: JobId,
        through: u64,
    },
    ReplaceState {
        job: JobId,
        state: Box<State>,
    },
    WantCancel {
        job: JobId,
        /// `None`: its notebook asked for it, or its owner.
        stopped: Option<StopReason>,
    },
    /// Staff hold back a queued job, release it, or move it to the front.
    Steer {
        job: JobId,
        held: Option<String>,
        front_ms: Option<i64>,
    },
    /// `queued | assigned | started -> finished`
    Finish {
        job: JobId,
        /// If the broker ended the job, this is above the number of the last assignment.
        fencing: FencingNumber,
        outcome: Outcome,
        usage: Usage,
        error: Option<RemoteError>,
        returned_bytes: Option<u64>,
        memory: MemoryCurve,
        at_ms: i64,
    },
    /// When its notebook kernel ended; `None` if the kernel reconnected.
    Orphan {
        job: JobId,
        at_ms: Option<i64>,
    },
    /// Charges a run: the new total of its account, and the run time that is added.
    Charge {
        account: Account,
        spent: Spent,
        run_ms: u64,
        at_ms: i64,
    },
    /// The notebook did not apply the result of a finished job, and reported this outcome instead.
    /// The row of the job may already be deleted.
    GiveUp {
        job: JobId,
        outcome: Outcome,
    },
    /// Nothing will ask for the job any more, so its events are deleted.
    Close {
        job: JobId,
    },
    /// The notebook submits the cell again, so the job is deleted, unless it has started. The row
    /// may already be deleted.
    Remove {
        job: JobId,
    },
    /// Also records the connection for the pool that requested the worker.
    SeeWorker {
        worker: WorkerId,
        name: String,
        devices: Vec<Device>,
        slots: u32,
        at_ms: i64,
    },
    LoseWorker {
        worker: WorkerId,
        at_ms: i64,
    },
    /// Replaces what the file of courses says about a worker.
    ChangeWorker {
        name: String,
        paused: Option<String>,
    },
    /// All differences between a course and the file of courses.
    ChangeCourse {
        course: String,
        change: Box<CourseChange>,
    },
    /// Grants an allowance, which replaces an earlier one, or withdraws it (`None`). An empty owner stands for everyone
    /// in the course.
    Allow {
        account: Account,
        allowance: Option<Allowance>,
        at_ms: i64,
    },
    /// Stores the lock from which an environment is built. Replaces an earlier one.
    KeepLock {
        environment: String,
        digest: String,
        lock: Lock,
        at_ms: i64,
    },
    Audit(AuditEntry),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Queued,
    Assigned,
    Started,
    Finished,
}

/// What the worker of a finished job still has of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remainder {
    Nothing,
    /// Deferred state, which has not arrived.
    Deferred,
    /// Deferred state, which has arrived and may be requested again.
    Sent,
    /// The session that ran it. If the notebook kernel ends, its variables are salvaged.
    Session,
}

/// What a restarted broker knows about an open job.
#[derive(Debug, Clone)]
pub struct OpenJob {
    pub job: JobId,
    pub sequence: u64,
    pub notebook: NotebookId,
    pub notebook_name: String,
    pub kind: JobKind,
    pub execution_count: Option<u32>,
    pub account: Account,
    pub phase: Phase,
    pub cancel_wanted: bool,
    pub stopped: Option<StopReason>,
    pub held: Option<String>,
    pub front_ms: Option<i64>,
    pub worker: Option<WorkerId>,
    pub worker_name: String,
    pub fencing: FencingNumber,
    pub acknowledged: u64,
    pub last_event: u64,
    pub remainder: Remainder,
    pub orphaned_ms: Option<i64>,
    pub outcome: Option<Outcome>,
    pub cell_key: Option<CellKey>,
    pub priority: Priority,
    /// The requirements of the cell itself. Empty if it has started.
    pub needs: Vec<Requirement>,
    pub timeout_ms: Option<u64>,
    pub submitted_ms: i64,
    pub started_ms: Option<i64>,
}

#[derive(Debug)]
pub struct Loaded {
    pub jobs: Vec<OpenJob>,
    /// The notebooks of closed jobs, which must not be submitted again.
    pub closed: HashMap<JobId, NotebookId>,
    /// The person of each notebook that has a job here, open or closed.
    pub owners: BTreeMap<NotebookId, String>,
    pub next_sequence: u64,
    /// When an earlier broker was last known to run, at the latest.
    pub last_alive_ms: Option<i64>,
    pub spent: Vec<(Account, Spent)>,
    /// The last runs that ended by themselves, the oldest first.
    pub runs: Vec<PastRun>,
    pub changes: Changes,
    /// The hash of each environment's stored lock.
    pub locks: BTreeMap<String, String>,
}

/// One action of one person.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    pub at_ms: i64,
    /// `None` for the broker's own token.
    pub person: Option<String>,
    pub action: api::Action,
    /// Empty if the action is about a worker.
    pub course: String,
    pub subject: String,
    pub detail: Option<String>,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Assigned => "assigned",
            Self::Started => "started",
            Self::Finished => "finished",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Queued, Self::Assigned, Self::Started, Self::Finished]
            .into_iter()
            .find(|phase| phase.name() == name)
    }
}

/// The memory of a session while one cell ran, as pairs of milliseconds since 1970 and bytes.
#[derive(Debug, Clone, Default)]
pub struct MemoryCurve(pub Vec<(i64, u64)>);

impl MemoryCurve {
    /// More points than a chart of usual width can show.
    const POINTS: usize = 240;

    /// If the curve is full, each pair of points is first replaced by the larger one.
    pub(crate) fn add(&mut self, at_ms: i64, bytes: u64) {
        if self.0.len() == Self::POINTS {
            let pairs = self.0.chunks(2);
            self.0 = pairs
                .map(|pair| pair.iter().copied().max_by_key(|(_, bytes)| *bytes))
                .collect::<Option<_>>()
                .unwrap_or_default();
        }
        self.0.push((at_ms, bytes));
    }
}
