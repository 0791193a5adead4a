//! The broker's database: jobs, their events, workers, and who holds each chunk and last named it when.
//!
//! In: [`Write`](baton_broker_queue::Write)s, many in one transaction, so that a change and the event that
//! reports it are stored together. Out: what a restarted broker needs
//! ([`OpenJob`](baton_broker_queue::OpenJob)), events by number, submissions, and rows for the pages.
//!
//! There are two engines: `sqlite` for a single broker, and `postgres` for brokers that take over
//! from each other. Both understand the same statements (`statement`), so all other modules here
//! work with either. [`Store`] opens the database and runs transactions. Each kind of record has a
//! handle in a file of its own, such as [`Store::jobs`].
//!
//! **Invariant:** nothing outside this crate contains SQL.

mod accounts;
mod audit_log;
mod chunks;
mod columns;
mod database;
mod environments;
mod error;
mod events;
mod job_changes;
mod jobs;
mod live;
mod load;
mod objects;
mod past;
mod pools;
mod postgres;
mod public_files;
mod row;
mod sign_ins;
mod sqlite;
mod staff_changes;
mod statement;
mod states;
#[cfg(test)]
mod tests;
mod workers;
mod write;

pub use accounts::{DAY_MS, UsageFilter, UsageRow, UsageSums};
pub use audit_log::AuditRow;
pub use chunks::Live;
pub use database::{Database, DatabaseError, PostgresUrl};
pub use error::StoreError;
pub use events::{LastOutput, is_limited};
pub use jobs::{JobDetail, JobFilter, JobRow};
pub use objects::ObjectRow;
pub use past::{HistoryFilter, HistoryRow, Look, Span};
pub use pools::{PoolRow, PoolWorkerRow};
pub use public_files::PublicFile;
pub use sign_ins::SignInRow;
pub use states::StateRow;

use accounts::Accounts;
use audit_log::AuditLog;
use baton_broker_queue::{Loaded, Write};
use chunks::Chunks;
use columns::count;
use environments::Environments;
use events::Events;
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use jobs::Jobs;
use objects::Objects;
use past::Past;
use pools::Pools;
use postgres::{PostgresStore, PostgresWriter};
use public_files::PublicFiles;
use row::Row;
use sign_ins::SignIns;
use sqlite::{SqliteStore, SqliteWriter};
use statement::{Statement, sql};
use states::States;

/// Statements in one transaction of [`Store::write_each`].
const BATCH: usize = 256;

/// One of the two engines. Their modules contain what differs between them.
#[derive(Clone)]
pub enum Store {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

/// The connections for reading. Further readers wait.
#[derive(Debug, Clone, Copy)]
enum Readers {
    /// What cells wait for, and everything that is read quickly or rarely.
    Cells,
    /// What people look at. However many pages are open, cells do not wait for them.
    Pages,
}

/// The only way to change anything. While it exists, it is the only writer.
enum Writer {
    Sqlite(SqliteWriter),
    Postgres(PostgresWriter),
}

impl Store {
    pub async fn open(database: &Database) -> Result<Self, StoreError> {
        Ok(match database {
            Database::Sqlite(path) => Self::Sqlite(SqliteStore::open(path).await?),
            Database::Postgres(url) => Self::Postgres(PostgresStore::new(url.options()?)),
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

    /// Whether the database can be read.
    pub async fn answers(&self) -> Result<(), StoreError> {
        self.fetch(sql("SELECT 1 FROM jobs LIMIT 1")).await?;
        Ok(())
    }

    /// Loads everything that a broker keeps in memory.
    pub async fn load(&self) -> Result<Loaded, StoreError> {
        // The writer is held, so nothing can be written between the queries.
        load::everything(&mut self.writer().await?).await
    }

    /// The chunks that may still be requested.
    pub async fn live_chunks(&self) -> Result<Live, StoreError> {
        live::chunks(self).await
    }

    /// Applies all writes or none.
    pub async fn apply(&self, writes: &[Write]) -> Result<(), StoreError> {
        let statements = write::statements(writes)?;
        self.writer().await?.apply(statements).await
    }

    /// What each account holds and has used.
    pub fn accounts(&self) -> Accounts<'_> {
        Accounts(self)
    }

    /// Who cancelled cells, and what staff have done.
    pub fn audit_log(&self) -> AuditLog<'_> {
        AuditLog(self)
    }

    /// Who holds which chunk.
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks(self)
    }

    /// The locks of environments.
    pub fn environments(&self) -> Environments<'_> {
        Environments(self)
    }

    /// What jobs have reported and printed.
    pub fn events(&self) -> Events<'_> {
        Events(self)
    }

    /// The rows of jobs.
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs(self)
    }

    /// Who holds which object in the object store.
    pub fn objects(&self) -> Objects<'_> {
        Objects(self)
    }

    /// What pages and estimates use of the past.
    pub fn past(&self) -> Past<'_> {
        Past(self)
    }

    /// Pools and their workers.
    pub fn pools(&self) -> Pools<'_> {
        Pools(self)
    }

    /// The public files of courses.
    pub fn public_files(&self) -> PublicFiles<'_> {
        PublicFiles(self)
    }

    /// Sign-ins of browsers and notebooks.
    pub fn sign_ins(&self) -> SignIns<'_> {
        SignIns(self)
    }

    /// The saved states of notebooks.
    pub fn states(&self) -> States<'_> {
        States(self)
    }

    async fn writer(&self) -> Result<Writer, StoreError> {
        Ok(match self {
            Self::Sqlite(store) => Writer::Sqlite(store.writer().await),
            Self::Postgres(store) => Writer::Postgres(store.writer().await?),
        })
    }

    /// Writes a statement for each item, in batches, so that others can write in between.
    async fn write_each<Item>(
        &self,
        items: &[Item],
        statement: impl Fn(&Item) -> Statement,
    ) -> Result<(), StoreError> {
        for batch in items.chunks(BATCH) {
            let statements = batch.iter().map(&statement).collect();
            self.writer().await?.apply(statements).await?;
        }
        Ok(())
    }

    /// Reads without waiting for the writer.
    fn rows(
        &self,
        readers: Readers,
        statement: Statement,
    ) -> BoxStream<'_, Result<Row, StoreError>> {
        match self {
            Self::Sqlite(store) => store.rows(readers, statement),
            Self::Postgres(store) => store.rows(readers, statement),
        }
    }

    /// Like [`Self::list`], for people.
    async fn list_for_pages<T, All: Default + Extend<T>>(
        &self,
        statement: Statement,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<All, StoreError> {
        self.read(Readers::Pages, statement, read).await
    }

    async fn list<T, All: Default + Extend<T>>(
        &self,
        statement: Statement,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<All, StoreError> {
        self.read(Readers::Cells, statement, read).await
    }

    /// Keeps what is read of the rows, and not the rows, which may be large.
    async fn read<T, All: Default + Extend<T>>(
        &self,
        readers: Readers,
        statement: Statement,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<All, StoreError> {
        let rows = self.rows(readers, statement);
        rows.map(|row| read(&row?)).try_collect().await
    }

    async fn first<T>(
        &self,
        statement: Statement,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        self.fetch(statement).await?.first().map(read).transpose()
    }

    /// The column `total` of the only row.
    async fn total(&self, statement: Statement) -> Result<u64, StoreError> {
        let total = self.first(statement, |row| count(row.get("total")?));
        Ok(total.await?.unwrap_or(0))
    }

    async fn fetch(&self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        self.rows(Readers::Cells, statement).try_collect().await
    }
}

impl Readers {
    const fn connections(self) -> u32 {
        match self {
            Self::Cells => 4,
            Self::Pages => 2,
        }
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
        self.list(statement, Ok).await
    }

    /// Keeps what is read of the rows, and not the rows, which may be large.
    async fn list<T: Send + 'static>(
        &mut self,
        statement: Statement,
        read: impl Fn(Row) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Sqlite(writer) => writer.list(statement, read).await,
            Self::Postgres(writer) => writer.list(statement, read).await,
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
