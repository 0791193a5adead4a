//! The broker's memory: jobs, their events, workers, and when each chunk was last named.
//!
//! In: [`Write`]s, many in one transaction, so that a state and the event that tells of it are stored together.
//! Out: what a restarted broker needs ([`OpenJob`]), events by number, submissions, rows for the pages.
//!
//! SQLite with a write-ahead log and `synchronous = NORMAL`: a committed transaction survives the death of the
//! process at any instant (kill -9). Only a crash of the whole machine may lose the last few transactions; never
//! does it lose half of one.
//! One connection writes, a pool of others reads, so that pages never hold up the queue; one folds the log, so that
//! the disk does not either.
//! Nothing outside this module knows SQL: a second engine joins by serving the same methods.

mod actions;
mod chunks;
mod fold;
mod listing;
mod past;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use actions::{AuditEntry, AuditRow};
pub(crate) use listing::{HistoryFilter, HistoryRow, JobFilter, JobRow, UsageFilter, UsageRow};
pub(crate) use past::{JobDetail, Look, Span};

use crate::{courses::Changes, dispatch::MemoryCurve, history::Run, people::Account, usage::Spent};
use baton_protocol::{
    CellKey, DecodeError, FencingNumber, JobId, NotebookId, NumberedEvent, Outcome, Priority,
    RemoteError, State, Submission, Usage, WorkerId, api::CourseChange, worker::Device,
};
use sqlx::{
    ConnectOptions, SqliteConnection, SqlitePool,
    migrate::{MigrateError, Migrator},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use std::{
    collections::HashSet,
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::Mutex;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// Pages and reconnecting proxies read at the same time; more of them wait.
const READERS: u32 = 4;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StoreError {
    #[error("The database refused a statement")]
    Database(#[from] sqlx::Error),
    #[error("The database could not be brought to this version's shape")]
    Migrate(#[from] MigrateError),
    #[error("Job {job} is not in the state that this change starts from")]
    Conflict { job: JobId },
    #[error("The database holds a record that cannot be read")]
    Decode(#[from] DecodeError),
    #[error("The database holds {what} that is not valid")]
    Damaged { what: &'static str },
    #[error("Failed to create {}", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// One change. Each is refused with [`StoreError::Conflict`] when the stored job is not where it should be.
#[derive(Debug)]
pub(crate) enum Write {
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
    /// A run was charged: what its account has spent now, and what of it is new.
    Charge {
        account: Account,
        spent: Spent,
        run_ms: u64,
        at_ms: i64,
    },
    /// Nobody asks for this job any more: its events go.
    Close {
        job: JobId,
    },
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
    Audit(AuditEntry),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Queued,
    Assigned,
    Started,
    Finished,
}

/// What a restarted broker knows of a job that somebody still waits for.
#[derive(Debug, Clone)]
pub(crate) struct OpenJob {
    pub(crate) job: JobId,
    pub(crate) sequence: u64,
    pub(crate) notebook: NotebookId,
    pub(crate) notebook_name: String,
    pub(crate) execution_count: Option<u32>,
    pub(crate) account: Account,
    pub(crate) phase: Phase,
    pub(crate) cancel_wanted: bool,
    pub(crate) stopped: Option<String>,
    pub(crate) held: Option<String>,
    pub(crate) front_ms: Option<i64>,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) worker_name: String,
    pub(crate) fencing: FencingNumber,
    pub(crate) acknowledged: u64,
    pub(crate) last_event: u64,
    /// Something that its end left out has not come.
    pub(crate) rest_due: bool,
    pub(crate) state_fencing: FencingNumber,
    pub(crate) cell_key: Option<CellKey>,
    pub(crate) priority: Priority,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) submitted_ms: i64,
    pub(crate) started_ms: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) jobs: Vec<OpenJob>,
    /// Jobs that nobody should submit again.
    pub(crate) closed: HashSet<JobId>,
    pub(crate) next_sequence: u64,
    pub(crate) spent: Vec<(Account, Spent)>,
    /// The last runs that ended by themselves, the oldest first.
    pub(crate) runs: Vec<Run>,
    pub(crate) changes: Changes,
}

#[derive(Clone)]
pub(crate) struct Store {
    /// An async lock because a transaction is held across its statements; it *is* the rule "one writer".
    writer: Arc<Mutex<SqliteConnection>>,
    readers: SqlitePool,
    /// Folds the log, which takes as long as the disk does.
    folder: Arc<Mutex<SqliteConnection>>,
    growth: Arc<fold::Growth>,
}

impl Store {
    pub(crate) async fn open(database: &Path) -> Result<Self, StoreError> {
        create_private_file(database)?;
        let options = SqliteConnectOptions::new()
            .filename(database)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10))
            .pragma("journal_size_limit", "67108864")
            // In pages: only where `keep_log_short` does not keep up.
            .pragma("wal_autocheckpoint", "16384")
            .disable_statement_logging();
        let mut writer = options.connect().await?;
        // `run` takes the connection in a way that makes the future of the caller impossible to spawn.
        MIGRATIONS.run_direct(None, &mut writer, false).await?;
        let folder = options.connect().await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .test_before_acquire(false)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self {
            writer: Arc::new(Mutex::new(writer)),
            readers,
            folder: Arc::new(Mutex::new(folder)),
            growth: Arc::default(),
        })
    }

    /// Folds the log into the database file. Not needed for safety.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.readers.close().await;
        let mut writer = self.writer.lock().await;
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(&mut *writer)
            .await?;
        Ok(())
    }
}

/// SQLite gives its log files the mode of the database file.
fn create_private_file(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::Create {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(failed)?;
    }
    let mut options = fs::OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(error)),
        _ => Ok(()),
    }
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Assigned => "assigned",
            Self::Started => "started",
            Self::Finished => "finished",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Queued, Self::Assigned, Self::Started, Self::Finished]
            .into_iter()
            .find(|phase| phase.name() == name)
    }
}
