//! The address of a database.

use sqlx::postgres::PgConnectOptions;
use std::{fmt, path::PathBuf};

/// Where jobs are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A file, for a single broker. A lock file beside it excludes a second one.
    Sqlite(PathBuf),
    /// A server, for several brokers. If the leader dies, another one takes over.
    Postgres(PostgresUrl),
}

impl Database {
    /// Accepts `postgres://...` or the path of a file.
    #[must_use]
    pub fn named(text: &str) -> Self {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Self::Postgres(PostgresUrl(text.to_owned()))
        } else {
            Self::Sqlite(text.into())
        }
    }
}

impl From<PathBuf> for Database {
    fn from(path: PathBuf) -> Self {
        Self::Sqlite(path)
    }
}

/// May contain a password, so it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PostgresUrl(hidden)")
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "The address of the database is not valid: {0}\nhint: it looks like postgres://USER:PASSWORD@HOST:PORT/DATABASE; the password can be in PGPASSWORD instead"
)]
pub struct DatabaseError(#[source] sqlx::Error);

impl PostgresUrl {
    pub(crate) fn options(&self) -> Result<PgConnectOptions, DatabaseError> {
        self.0.parse().map_err(DatabaseError)
    }
}
