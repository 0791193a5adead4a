//! SQLite with a write-ahead log and `synchronous = NORMAL`: a committed transaction survives the death of the
//! process at any instant (kill -9). Only a crash of the whole machine may lose the last few transactions; never
//! does it lose half of one. Then peers know more than the database, which `dispatch/behind.rs` finds out.
//!
//! One connection writes, a pool of others reads, so that pages never hold up the queue; one folds the log, so that
//! the disk does not either.
//! SQLx answers each statement to the waiting task, which for a cell's few small ones takes longer than they do, so
//! a transaction goes through `rusqlite` in one piece.

use super::{
    StoreError,
    statement::{Row, Statement, Value, check},
};
use futures_util::{TryStreamExt, stream::BoxStream};
use rusqlite::{Connection, ToSql, TransactionBehavior, params_from_iter, types::ToSqlOutput};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Executor, Sqlite, SqliteConnection, SqlitePool,
    migrate::Migrator,
    query::Query,
    sqlite::{
        SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions,
        SqliteSynchronous,
    },
};
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations/sqlite");

/// So many transactions make folding the log worth while; about 100 MB of it. The first one after waits for the disk,
/// because the log begins anew with it, so folding is rare.
const FOLDED_TRANSACTIONS: u64 = 4096;
const LOG_BYTES: i64 = 128 << 20;
/// Only where `keep_log_short` does not keep up.
const AUTOMATICALLY_FOLDED_PAGES: i64 = 1 << 16;
/// More than there are of every day; inserts of many events are of any length.
const PREPARED_STATEMENTS: usize = 128;
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct SqliteStore {
    /// An async lock because a writer reads before it changes; it *is* the rule "one writer".
    connections: Arc<Mutex<Connections>>,
    readers: SqlitePool,
    /// Folds the log, which takes as long as the disk does.
    folder: Arc<Mutex<SqliteConnection>>,
    growth: Arc<Growth>,
}

struct Connections {
    changes: Connection,
    reads: SqliteConnection,
}

/// What the log has grown by since it was folded.
#[derive(Default)]
struct Growth {
    transactions: AtomicU64,
    enough: Notify,
}

pub(super) struct SqliteWriter {
    connections: OwnedMutexGuard<Connections>,
    growth: Arc<Growth>,
}

impl SqliteStore {
    pub(super) async fn open(database: &Path, readers: u32) -> Result<Self, StoreError> {
        create_private_file(database)?;
        let options = SqliteConnectOptions::new()
            .filename(database)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("journal_size_limit", LOG_BYTES.to_string())
            .disable_statement_logging();
        let mut reads = options.connect().await?;
        // `run` takes the connection in a way that makes the future of the caller impossible to spawn.
        MIGRATIONS.run_direct(None, &mut reads, false).await?;
        let changes = open_for_changes(database)?;
        let folder = options.connect().await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(readers)
            .test_before_acquire(false)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self {
            connections: Arc::new(Mutex::new(Connections { changes, reads })),
            readers,
            folder: Arc::new(Mutex::new(folder)),
            growth: Arc::default(),
        })
    }

    pub(super) async fn writer(&self) -> SqliteWriter {
        SqliteWriter {
            connections: Arc::clone(&self.connections).lock_owned().await,
            growth: Arc::clone(&self.growth),
        }
    }

    pub(super) fn rows(&self, statement: Statement) -> BoxStream<'_, sqlx::Result<Row>> {
        let rows = query(statement).fetch(&self.readers);
        Box::pin(rows.map_ok(Row::Sqlite))
    }

    /// Folds the log into the database file. Not needed for safety.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        self.readers.close().await;
        let mut connections = self.connections.lock().await;
        let fold = "PRAGMA wal_checkpoint(TRUNCATE)";
        connections.reads.execute(fold).await?;
        Ok(())
    }

    /// Folds the log beside the writer, so that no cell waits for the disk. Runs until it is dropped. Not needed for
    /// safety: a log that nobody folds is folded by the writer in the end.
    pub(super) async fn keep_log_short(&self) {
        loop {
            self.growth.enough.notified().await;
            self.growth.transactions.store(0, Ordering::Relaxed);
            let mut folder = self.folder.lock().await;
            // Waits for no reader and holds up no writer.
            if let Err(error) = folder.execute("PRAGMA wal_checkpoint(PASSIVE)").await {
                tracing::warn!("Failed to checkpoint the database's log: {error}");
            }
        }
    }
}

impl SqliteWriter {
    /// Sees all changes up to now: nobody else makes any.
    pub(super) async fn fetch(&mut self, statement: Statement) -> sqlx::Result<Vec<Row>> {
        let rows = query(statement).fetch(&mut self.connections.reads);
        rows.map_ok(Row::Sqlite).try_collect().await
    }

    /// Blocks, for as long as the file system takes.
    pub(super) fn apply(mut self, statements: &[Statement]) -> Result<(), StoreError> {
        let changes = &mut self.connections.changes;
        let transaction = changes.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for Statement {
            sql,
            values,
            changes,
        } in statements
        {
            let mut statement = transaction.prepare_cached(sql)?;
            let rows = statement.execute(params_from_iter(values))?;
            check(*changes, rows as u64)?;
        }
        transaction.commit()?;
        self.growth.add();
        Ok(())
    }
}

fn open_for_changes(database: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open(database)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    connection.pragma_update(None, "wal_autocheckpoint", AUTOMATICALLY_FOLDED_PAGES)?;
    Ok(connection)
}

fn query(statement: Statement) -> Query<'static, Sqlite, SqliteArguments> {
    let query = sqlx::query(AssertSqlSafe(statement.sql));
    let values = statement.values.into_iter();
    values.fold(query, |query, value| match value {
        Value::Integer(integer) => query.bind(integer),
        Value::Real(real) => query.bind(real),
        Value::Text(text) => query.bind(text),
        Value::Bytes(bytes) => query.bind(bytes),
    })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Integer(integer) => integer.to_sql(),
            Self::Real(real) => real.to_sql(),
            Self::Text(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

impl Growth {
    fn add(&self) {
        if self.transactions.fetch_add(1, Ordering::Relaxed) + 1 >= FOLDED_TRANSACTIONS {
            self.enough.notify_one();
        }
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
