//! The broker's memory: jobs, their events, workers, who holds each chunk and when they last named it.
//!
//! In: [`Write`]s, many in one transaction, so that a state and the event that tells of it are stored together.
//! Out: what a restarted broker needs ([`OpenJob`]), events by number, submissions, rows for the pages.
//!
//! Two engines serve it: `sqlite` for a broker that is alone, `postgres` for brokers that take over from each other.
//! Both understand the same statements (`statement`), so all other modules here speak to either.
//! Nothing outside this module knows SQL.

mod actions;
mod chunks;
mod environments;
mod listing;
mod objects;
mod past;
mod pools;
mod postgres;
mod public;
mod read;
mod sign_ins;
mod sqlite;
mod statement;
mod states;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use actions::{AuditEntry, AuditRow};
pub(crate) use chunks::Live;
pub(crate) use listing::{HistoryFilter, HistoryRow, JobFilter, JobRow, UsageFilter, UsageRow};
pub(crate) use objects::ObjectRow;
pub(crate) use past::{JobDetail, Look, Span};
pub(crate) use pools::{PoolRow, PoolWorkerRow};
pub(crate) use public::PublicFile;
pub(crate) use sign_ins::SignInRow;
pub(crate) use states::StateRow;

use crate::{
    config::{Database, DatabaseError},
    courses::Changes,
    dispatch::MemoryCurve,
    people::Account,
    usage::Spent,
};
use baton_protocol::{
    CellKey, DecodeError, FencingNumber, JobId, JobKind, Lock, NotebookId, NumberedEvent, Outcome,
    Priority, RemoteError, Requirement, State, Submission, Usage, WorkerId, api::CourseChange,
    worker::Device,
};
use baton_scheduling::queue::PastRun;
use futures_util::{TryStreamExt, stream::BoxStream};
use postgres::{PostgresStore, PostgresWriter};
use rusqlite::ErrorCode;
use sqlite::{SqliteStore, SqliteWriter};
use sqlx::migrate::MigrateError;
use statement::{Row, Statement};
use std::{
    collections::{BTreeMap, HashMap},
    io::ErrorKind,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// Pages and reconnecting proxies read at the same time; more of them wait.
const READERS: u32 = 4;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StoreError {
    #[error("The database refused a statement")]
    Database(#[from] sqlx::Error),
    #[error("The database refused a change")]
    Sqlite(#[from] rusqlite::Error),
    #[error("Failed to migrate the database to this version")]
    Migrate(#[from] MigrateError),
    #[error("Job {job} is not in the state that this change requires")]
    Conflict { job: JobId },
    #[error("The database contains a record that cannot be read")]
    Decode(#[from] DecodeError),
    #[error("The database contains {what} that is not valid")]
    Damaged { what: &'static str },
    #[error(transparent)]
    Address(#[from] DatabaseError),
    #[error("PostgreSQL on {server} cannot be reached: {source}")]
    Unreachable { server: String, source: sqlx::Error },
    #[error("This is PostgreSQL {version}; the broker needs {oldest} or later")]
    OldServer { version: i32, oldest: i32 },
    #[error("The database did not answer within {} s", after.as_secs())]
    Silent { after: Duration },
    #[error("Another broker is the leader")]
    OtherLeader { leader: Option<String> },
    #[error("This broker has lost its connection to the database, or another broker is the leader")]
    NotLeader,
    #[error("Failed to create {}", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether waiting may help. Everything else a person must mend.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Database(source) | Self::Unreachable { source, .. } => match source {
                // "The database system is starting up", or shutting down.
                sqlx::Error::Database(refused) => refused
                    .code()
                    .is_some_and(|code| ["57P01", "57P02", "57P03"].contains(&&*code)),
                // A certificate that is not taken.
                sqlx::Error::Io(error) => error.kind() != ErrorKind::InvalidData,
                sqlx::Error::PoolTimedOut => true,
                _ => false,
            },
            Self::Silent { .. } | Self::NotLeader => true,
            _ => false,
        }
    }

    /// What the broker lacks, in words for students. It goes on by itself once there is some of it again.
    pub(crate) fn shortage(&self) -> Option<&'static str> {
        const DISK: &str = "The broker's disk is full";
        const FILES: &str = "The broker can open no more files or connections";
        const READ_ONLY: &str = "The broker's disk is read-only";
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => match error.code {
                ErrorCode::DiskFull => Some(DISK),
                ErrorCode::CannotOpen => Some(FILES),
                ErrorCode::ReadOnly | ErrorCode::SystemIoFailure => Some(READ_ONLY),
                _ => None,
            },
            Self::Database(sqlx::Error::Database(refused)) => match &*refused.code()? {
                "13" | "53100" => Some(DISK),
                "14" => Some(FILES),
                _ => None,
            },
            _ => None,
        }
    }
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
pub(crate) enum Phase {
    Queued,
    Assigned,
    Started,
    Finished,
}

/// What a finished job's worker still has of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remainder {
    Nothing,
    /// What its end left out has not come, or may be wanted again.
    Deferred,
    /// The session that ran it, which is asked for what it has if the notebook kernel ends.
    Session,
}

/// What a restarted broker knows of a job that somebody still waits for.
#[derive(Debug, Clone)]
pub(crate) struct OpenJob {
    pub(crate) job: JobId,
    pub(crate) sequence: u64,
    pub(crate) notebook: NotebookId,
    pub(crate) notebook_name: String,
    pub(crate) kind: JobKind,
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
    pub(crate) remainder: Remainder,
    pub(crate) orphaned_ms: Option<i64>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) state_fencing: FencingNumber,
    pub(crate) cell_key: Option<CellKey>,
    pub(crate) priority: Priority,
    /// What the cell itself requires of its worker, unless it has started.
    pub(crate) needs: Vec<Requirement>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) submitted_ms: i64,
    pub(crate) started_ms: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) jobs: Vec<OpenJob>,
    /// Jobs that are over, with their notebooks: they are not submitted again.
    pub(crate) closed: HashMap<JobId, NotebookId>,
    /// The person of each notebook that has a job here, open or closed.
    pub(crate) owners: BTreeMap<NotebookId, String>,
    pub(crate) next_sequence: u64,
    pub(crate) spent: Vec<(Account, Spent)>,
    /// The last runs that ended by themselves, the oldest first.
    pub(crate) runs: Vec<PastRun>,
    pub(crate) changes: Changes,
}

/// One of the two engines. What differs between them stands in their modules.
#[derive(Clone)]
pub(crate) enum Store {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

/// The only way to change anything. Nobody else changes anything as long as it is there.
enum Writer {
    Sqlite(SqliteWriter),
    Postgres(PostgresWriter),
}

impl Store {
    pub(crate) async fn open(database: &Database) -> Result<Self, StoreError> {
        Ok(match database {
            Database::Sqlite(path) => Self::Sqlite(SqliteStore::open(path, READERS).await?),
            Database::Postgres(url) => Self::Postgres(PostgresStore::new(url.options()?, READERS)),
        })
    }

    /// Nothing can be written before, nor after another broker became the leader. Idempotent.
    ///
    /// # Errors
    /// [`StoreError::OtherLeader`] if another broker is the leader.
    pub(crate) async fn acquire_leadership(&self) -> Result<(), StoreError> {
        match self {
            // Its file is locked.
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(store) => store.acquire_leadership().await,
        }
    }

    /// Whether what was loaded is still what is stored.
    pub(crate) async fn check_leadership(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(store) => store.check_leadership().await,
        }
    }

    /// Tells followers the leader's address.
    pub(crate) async fn announce(&self, address: &str) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(_) => {
                let announcement = postgres::announcement(address);
                self.writer().await?.apply(vec![announcement]).await
            }
        }
    }

    /// Runs until it is dropped.
    pub(crate) async fn maintain(&self) {
        match self {
            Self::Sqlite(store) => store.keep_log_short().await,
            Self::Postgres(_) => std::future::pending().await,
        }
    }

    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(store) => store.close().await,
        }
    }

    async fn writer(&self) -> Result<Writer, StoreError> {
        Ok(match self {
            Self::Sqlite(store) => Writer::Sqlite(store.writer().await),
            Self::Postgres(store) => Writer::Postgres(store.writer().await?),
        })
    }

    /// Reads beside the writer.
    fn rows(&self, statement: Statement) -> BoxStream<'_, sqlx::Result<Row>> {
        match self {
            Self::Sqlite(store) => store.rows(statement),
            Self::Postgres(store) => store.rows(statement),
        }
    }

    async fn fetch(&self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        Ok(self.rows(statement).try_collect().await?)
    }
}

impl Writer {
    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        match self {
            Self::Sqlite(writer) => Ok(writer.fetch(statement).await?),
            Self::Postgres(writer) => writer.fetch(statement).await,
        }
    }

    /// All of it or nothing. Goes on to its end when the caller is dropped.
    async fn apply(self, statements: Vec<Statement>) -> Result<(), StoreError> {
        let applied = match self {
            Self::Sqlite(writer) => tokio::task::spawn_blocking(move || writer.apply(&statements)),
            Self::Postgres(writer) => tokio::spawn(writer.apply(statements)),
        };
        applied.await.unwrap_or_else(|failed| {
            Err(StoreError::from(sqlx::Error::Io(std::io::Error::other(
                failed,
            ))))
        })
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
