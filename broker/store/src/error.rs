//! What can fail.

use super::DatabaseError;
use baton_protocol::{DecodeError, JobId};
use rusqlite::ErrorCode;
use sqlx::migrate::MigrateError;
use std::{io::ErrorKind, path::PathBuf, time::Duration};
use tokio::task::JoinError;

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
        const FAILS: &str = "The broker's disk reports errors";
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => match error.code {
                ErrorCode::DiskFull => Some(DISK),
                ErrorCode::CannotOpen => Some(FILES),
                ErrorCode::ReadOnly => Some(READ_ONLY),
                ErrorCode::SystemIoFailure => Some(FAILS),
                _ => None,
            },
            Self::Database(sqlx::Error::Database(refused)) if refused.code()? == "53100" => {
                Some(DISK)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn each_shortage_has_its_own_words() {
        let check = |code, expected: Option<&str>| {
            let failure = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(StoreError::from(failure).shortage(), expected);
        };
        check(ffi::SQLITE_FULL, Some("The broker's disk is full"));
        check(ffi::SQLITE_READONLY, Some("The broker's disk is read-only"));
        check(
            ffi::SQLITE_IOERR_FSYNC,
            Some("The broker's disk reports errors"),
        );
        check(
            ffi::SQLITE_CANTOPEN,
            Some("The broker can open no more files or connections"),
        );
        check(ffi::SQLITE_CONSTRAINT, None);
    }
}
