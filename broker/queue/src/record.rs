//! What is stored of jobs: changes, and what a restarted broker reads.
//!
//! **Invariant:** pure.

use crate::{courses::Changes, spent::Spent};
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

/// One change. Each is refused with a conflict when the stored job is not where it should be.
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
        /// The worker's own number of the last of these events; `None` when the broker itself made them.
        acknowledged: Option<u64>,
        events: Vec<NumberedEvent>,
    },
    ReplaceState {
        job: JobId,
        fencing: FencingNumber,
        state: Box<State>,
    },
    WantCancel {
        job: JobId,
        /// By whom of the staff, in words.
        stopped: Option<String>,
    },
    /// Staff hold a queued job back, let it go, or move it to the front.
    Steer {
        job: JobId,
        held: Option<String>,
        front_ms: Option<i64>,
    },
    /// `queued | assigned | started -> finished`
    Finish {
        job: JobId,
        /// Above that of the last assignment when the broker ended the job.
        fencing: FencingNumber,
        outcome: Outcome,
        usage: Usage,
        error: Option<RemoteError>,
        returned_bytes: Option<u64>,
        memory: MemoryCurve,
        at_ms: i64,
    },
    /// Its notebook kernel ended then; `None`: it came back.
    Orphan {
        job: JobId,
        at_ms: Option<i64>,
    },
    /// A run was charged: what its account has spent now, and what of it is new.
    Charge {
        account: Account,
        spent: Spent,
        run_ms: u64,
        at_ms: i64,
    },
    /// What a finished job did was not taken home: what the notebook said instead. Its row may be gone.
    GiveUp {
        job: JobId,
        outcome: Outcome,
    },
    /// Nobody asks for this job any more: its events go.
    Close {
        job: JobId,
    },
    /// The notebook submits its cell anew: unless the job has started, nothing of it stays. Its row may be gone.
    Remove {
        job: JobId,
    },
    /// Also for the pool that asked for it.
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
    /// What holds for a worker over what the file says.
    ChangeWorker {
        name: String,
        paused: Option<String>,
    },
    /// All that differs in a course from what the file says.
    ChangeCourse {
        course: String,
        change: Box<CourseChange>,
    },
    /// From what an environment is built; in place of an earlier lock.
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

/// What a finished job's worker still has of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remainder {
    Nothing,
    /// What its end left out has not come, or may be wanted again.
    Deferred,
    /// The session that ran it, which is asked for what it has if the notebook kernel ends.
    Session,
}

/// What a restarted broker knows of a job that somebody still waits for.
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
    pub stopped: Option<String>,
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
    pub state_fencing: FencingNumber,
    pub cell_key: Option<CellKey>,
    pub priority: Priority,
    /// What the cell itself requires of its worker, unless it has started.
    pub needs: Vec<Requirement>,
    pub timeout_ms: Option<u64>,
    pub submitted_ms: i64,
    pub started_ms: Option<i64>,
}

#[derive(Debug)]
pub struct Loaded {
    pub jobs: Vec<OpenJob>,
    /// Jobs that are over, with their notebooks: they are not submitted again.
    pub closed: HashMap<JobId, NotebookId>,
    /// The person of each notebook that has a job here, open or closed.
    pub owners: BTreeMap<NotebookId, String>,
    pub next_sequence: u64,
    pub spent: Vec<(Account, Spent)>,
    /// The last runs that ended by themselves, the oldest first.
    pub runs: Vec<PastRun>,
    pub changes: Changes,
}

/// One act of one person.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    pub at_ms: i64,
    /// `None`: the broker's own token.
    pub person: Option<String>,
    pub action: api::Action,
    /// Empty for workers.
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

/// Memory of a session while one cell ran: times in milliseconds since 1970, and bytes.
#[derive(Debug, Clone, Default)]
pub struct MemoryCurve(pub Vec<(i64, u64)>);

impl MemoryCurve {
    /// More than a chart of usual width shows.
    const POINTS: usize = 240;

    /// A long run is told in coarser steps, each with the larger of two values.
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
