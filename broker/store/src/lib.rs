//! The broker's database: jobs, their events, workers, and who holds each chunk and last named it when.
//!
//! In: [`Write`](baton_broker_queue::Write)s, many in one transaction, so that a change and the event that
//! reports it are stored together. Out: what a restarted broker needs
//! ([`OpenJob`](baton_broker_queue::OpenJob)), events by number, submissions, and rows for the pages.
//!
//! There are two engines: `sqlite` for a single broker, and `postgres` for brokers that take over
//! from each other. Both understand the same statements (`statement`), so all other modules here
//! work with either.
//!
//! **Invariant:** nothing outside this crate contains SQL.

mod actions;
mod chunks;
mod columns;
mod database;
mod environments;
mod listing;
mod objects;
mod past;
mod pools;
mod postgres;
mod public;
mod read;
mod row;
mod sign_ins;
mod sqlite;
mod statement;
mod states;
#[cfg(test)]
mod tests;
mod write;

pub use actions::AuditRow;
pub use chunks::Live;
pub use database::{Database, DatabaseError, PostgresUrl};
pub use listing::{HistoryFilter, HistoryRow, JobFilter, JobRow, UsageFilter, UsageRow};
pub use objects::ObjectRow;
pub use past::{JobDetail, Look, Span};
pub use pools::{PoolRow, PoolWorkerRow};
pub use public::PublicFile;
pub use sign_ins::SignInRow;
pub use states::StateRow;

use baton_protocol::{DecodeError, JobId};
use futures_util::{TryStreamExt, stream::BoxStream};
use postgres::{PostgresStore, PostgresWriter};
use row::Row;
use rusqlite::ErrorCode;
use sqlite::{SqliteStore, SqliteWriter};
use sqlx::migrate::MigrateError;
use statement::Statement;
use std::{io::ErrorKind, path::PathBuf, time::Duration};
use tokio::task::JoinError;

/// Connections for reading, used by pages and reconnecting proxies. Further readers wait.
const READERS: u32 = 4;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("The database refused a statement")]
    Database(#[from] sqlx::Error),
    #[error("The database refused a statement")]
    Sqlite(#[from] rusqlite::Error),
    #[error("Failed to migrate the database to this version")]
    Migrate(#[from] MigrateError),
    #[error("Failed to migrate the database to this version")]
    MigrateSqlite(#[from] rusqlite_migration::Error),
    #[error("The database has been closed")]
    Closed,
    #[error("Work on the database was interrupted")]
    Interrupted(#[source] JoinError),
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
    /// Whether waiting may help. A person must fix any other error.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Database(source) | Self::Unreachable { source, .. } => match source {
                // "The database system is starting up", or shutting down.
                sqlx::Error::Database(refused) => refused
                    .code()
                    .is_some_and(|code| ["57P01", "57P02", "57P03"].contains(&&*code)),
                // A certificate that was not accepted.
                sqlx::Error::Io(error) => error.kind() != ErrorKind::InvalidData,
                sqlx::Error::PoolTimedOut => true,
                _ => false,
            },
            Self::Silent { .. } | Self::NotLeader => true,
            _ => false,
        }
    }

    /// What the broker lacks, in words for students. It continues by itself when the shortage is over.
    pub fn shortage(&self) -> Option<&'static str> {
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
            Self::Database(sqlx::Error::Database(refused)) if refused.code()? == "53100" => {
                Some(DISK)
            }
            _ => None,
        }
    }
}

/// One of the two engines. Their modules contain what differs between them.
#[derive(Clone)]
pub enum Store {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

/// The only way to change anything. While it exists, it is the only writer.
enum Writer {
    Sqlite(SqliteWriter),
    Postgres(PostgresWriter),
}

impl Store {
    pub async fn open(database: &Database) -> Result<Self, StoreError> {
        Ok(match database {
            Database::Sqlite(path) => Self::Sqlite(SqliteStore::open(path, READERS).await?),
            Database::Postgres(url) => Self::Postgres(PostgresStore::new(url.options()?, READERS)),
        })
    }

    /// Must be called before the first write, and again after another broker was the leader. Idempotent.
    ///
    /// # Errors
    /// [`StoreError::OtherLeader`] if another broker is the leader.
    pub async fn acquire_leadership(&self) -> Result<(), StoreError> {
        match self {
            // The lock on the database file already excludes other brokers.
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(store) => store.acquire_leadership().await,
        }
    }

    /// Fails if another broker may have changed what this one has loaded.
    pub async fn check_leadership(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(store) => store.check_leadership().await,
        }
    }

    /// Tells followers the leader's address.
    pub async fn announce(&self, address: &str) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(_) => {
                let announcement = postgres::announcement(address);
                self.writer().await?.apply(vec![announcement]).await
            }
        }
    }

    /// Maintenance in the background. Runs until it is dropped.
    pub async fn maintain(&self) {
        match self {
            Self::Sqlite(store) => store.keep_log_short().await,
            Self::Postgres(_) => std::future::pending().await,
        }
    }

    pub async fn close(&self) -> Result<(), StoreError> {
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

    /// Reads without waiting for the writer.
    fn rows(&self, statement: Statement) -> BoxStream<'_, Result<Row, StoreError>> {
        match self {
            Self::Sqlite(store) => store.rows(statement),
            Self::Postgres(store) => store.rows(statement),
        }
    }

    async fn fetch(&self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        self.rows(statement).try_collect().await
    }
}

impl Writer {
    /// Like [`Self::apply`], and these changes survive a crash of the machine.
    async fn apply_durably(self, statements: Vec<Statement>) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.apply_durably(statements).await,
            // PostgreSQL loses nothing that it has committed.
            postgres => postgres.apply(statements).await,
        }
    }

    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        match self {
            Self::Sqlite(writer) => writer.fetch(statement).await,
            Self::Postgres(writer) => writer.fetch(statement).await,
        }
    }

    /// Applies all statements or none. Continues to the end even if the caller is dropped.
    async fn apply(self, statements: Vec<Statement>) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.apply(statements).await,
            Self::Postgres(writer) => tokio::spawn(writer.apply(statements))
                .await
                .unwrap_or_else(|failed| Err(StoreError::Interrupted(failed))),
        }
    }
}
