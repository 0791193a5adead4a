//! SQLite with a write-ahead log and `synchronous = NORMAL`: a committed transaction survives the death of the
//! process at any instant (kill -9). Only a crash of the whole machine may lose the last few transactions; never
//! does it lose half of one.
//!
//! One connection writes, a pool of others reads, so that pages never hold up the queue; one folds the log, so that
//! the disk does not either.
//! Each statement is a trip to the connection's own thread and back, so a transaction is sent as one text.

use super::{
    StoreError,
    statement::{Row, Statement, Value, check},
};
use futures_util::{TryStreamExt, stream::BoxStream};
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
/// Longer ones are of many shapes, which would push those of every day out of the memory for prepared statements.
const REMEMBERED_STATEMENTS: usize = 8;

#[derive(Clone)]
pub(crate) struct SqliteStore {
    /// An async lock because a transaction is held across its statements; it *is* the rule "one writer".
    writer: Arc<Mutex<SqliteConnection>>,
    readers: SqlitePool,
    /// Folds the log, which takes as long as the disk does.
    folder: Arc<Mutex<SqliteConnection>>,
    growth: Arc<Growth>,
}

/// What the log has grown by since it was folded.
#[derive(Default)]
struct Growth {
    transactions: AtomicU64,
    enough: Notify,
}

pub(super) struct SqliteWriter {
    connection: OwnedMutexGuard<SqliteConnection>,
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
            .busy_timeout(Duration::from_secs(10))
            .pragma("journal_size_limit", "134217728")
            // In pages: only where `keep_log_short` does not keep up.
            .pragma("wal_autocheckpoint", "65536")
            .disable_statement_logging();
        let mut writer = options.connect().await?;
        // `run` takes the connection in a way that makes the future of the caller impossible to spawn.
        MIGRATIONS.run_direct(None, &mut writer, false).await?;
        let folder = options.connect().await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(readers)
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

    pub(super) async fn writer(&self) -> SqliteWriter {
        SqliteWriter {
            connection: Arc::clone(&self.writer).lock_owned().await,
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
        let mut writer = self.writer.lock().await;
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
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
                tracing::warn!("The database's log could not be folded: {error}");
            }
        }
    }
}

impl SqliteWriter {
    pub(super) async fn fetch(&mut self, statement: Statement) -> sqlx::Result<Vec<Row>> {
        let rows = query(statement).fetch(&mut *self.connection);
        rows.map_ok(Row::Sqlite).try_collect().await
    }

    /// Must go on to its end, or the connection is left inside of a transaction.
    pub(super) async fn apply(mut self, statements: Vec<Statement>) -> Result<(), StoreError> {
        apply(&mut self.connection, statements).await?;
        self.growth.add();
        Ok(())
    }
}

async fn apply(
    connection: &mut SqliteConnection,
    statements: Vec<Statement>,
) -> Result<(), StoreError> {
    let changed = apply_uncommitted(connection, statements).await;
    let end = if changed.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = connection.execute(end).await;
    changed?;
    ended?;
    Ok(())
}

/// One trip for all statements.
async fn apply_uncommitted(
    connection: &mut SqliteConnection,
    statements: Vec<Statement>,
) -> Result<(), StoreError> {
    let mut checks = Vec::with_capacity(statements.len());
    let mut text = String::from("BEGIN IMMEDIATE");
    let mut values = Vec::new();
    for statement in statements {
        text.push_str("; ");
        text.push_str(&statement.sql);
        checks.push(statement.changes);
        values.extend(statement.values);
    }
    let remembered = checks.len() <= REMEMBERED_STATEMENTS;
    let query = bound(sqlx::query(AssertSqlSafe(text)), values).persistent(remembered);
    let results: Vec<_> = connection.execute_many(query).try_collect().await?;
    // The first is that of `BEGIN`.
    for (job, result) in checks.into_iter().zip(&results[1..]) {
        check(job, result.rows_affected())?;
    }
    Ok(())
}

fn query(statement: Statement) -> Query<'static, Sqlite, SqliteArguments> {
    bound(sqlx::query(AssertSqlSafe(statement.sql)), statement.values)
}

fn bound(
    query: Query<'static, Sqlite, SqliteArguments>,
    values: Vec<Value>,
) -> Query<'static, Sqlite, SqliteArguments> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Integer(integer) => query.bind(integer),
        Value::Real(real) => query.bind(real),
        Value::Text(text) => query.bind(text),
        Value::Bytes(bytes) => query.bind(bytes),
    })
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
