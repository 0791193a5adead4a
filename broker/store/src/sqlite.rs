//! SQLite with a write-ahead log and `synchronous = NORMAL`: a committed transaction survives the
//! death of the process at any instant (kill -9). A crash of the whole machine may lose the last
//! few transactions, but never part of one, and none before a durable one (`apply_durably`). Peers then know more than the database, which
//! `dispatch/lost_records.rs` detects.
//!
//! One connection writes. Pools of others read, so that pages never block the queue. Another one
//! checkpoints the log, so that the queue does not wait for the disk. All of this runs on threads
//! that may block.

mod migrations;

use super::{
    Readers, StoreError,
    row::{Row, SqliteRow},
    statement::{Statement, Value, check},
};
use deadpool::unmanaged::{Object, Pool};
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use rusqlite::{
    Connection, OpenFlags, ToSql, TransactionBehavior, params_from_iter, types::ToSqlOutput,
};
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{self, Notify, OwnedMutexGuard, mpsc},
    task::spawn_blocking,
};
use tokio_stream::wrappers::ReceiverStream;

/// After how many transactions the log is checkpointed, which is about 100 MB. The first transaction afterwards
/// waits for the disk, because it restarts the log, so checkpoints should be rare.
const FOLDED_TRANSACTIONS: u64 = 4096;
const LOG_BYTES: i64 = 128 << 20;
/// SQLite's own checkpoints, in case `keep_log_short` is too slow.
const AUTOMATICALLY_FOLDED_PAGES: i64 = 1 << 16;
/// More than the statements of normal operation. Inserts of many events have any length.
const PREPARED_STATEMENTS: usize = 128;
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How many rows are read ahead of the caller. A row of at least `LARGE_ROW_BYTES` is sent only when the caller has
/// taken all rows before it.
const ROWS_AHEAD: usize = 64;
const LARGE_ROW_BYTES: usize = 64 << 10;

#[derive(Clone)]
pub struct SqliteStore {
    writer: SharedConnection,
    /// An async lock, because a writer reads before it changes. It is what ensures a single writer.
    turn: Arc<sync::Mutex<()>>,
    readers: Pool<Connection>,
    page_readers: Pool<Connection>,
    /// Checkpoints the log, which takes as long as the disk does.
    folder: SharedConnection,
    growth: Arc<Growth>,
}

type RowRead = Result<Row, StoreError>;

#[derive(Clone)]
struct SharedConnection(Arc<Mutex<Connection>>);

/// How much the log has grown since the last checkpoint.
#[derive(Default)]
struct Growth {
    transactions: AtomicU64,
    enough: Notify,
}

pub(super) struct SqliteWriter {
    connection: SharedConnection,
    growth: Arc<Growth>,
    _turn: OwnedMutexGuard<()>,
}

impl SqliteStore {
    pub(super) async fn open(database: &Path) -> Result<Self, StoreError> {
        let database = database.to_owned();
        blocking(move || Self::open_now(&database)).await
    }

    fn open_now(database: &Path) -> Result<Self, StoreError> {
        create_private_file(database)?;
        let mut writer = open_for_changes(database)?;
        migrations::run(&mut writer)?;
        let pool = |readers: Readers| {
            let connections = (0..readers.connections()).map(|_| open_for_reading(database));
            Ok::<_, StoreError>(connections.collect::<Result<Vec<_>, _>>()?.into())
        };
        Ok(Self {
            folder: SharedConnection::new(open_for_changes(database)?),
            readers: pool(Readers::Cells)?,
            page_readers: pool(Readers::Pages)?,
            writer: SharedConnection::new(writer),
            turn: Arc::default(),
            growth: Arc::default(),
        })
    }

    pub(super) async fn writer(&self) -> SqliteWriter {
        SqliteWriter {
            _turn: Arc::clone(&self.turn).lock_owned().await,
            connection: self.writer.clone(),
            growth: Arc::clone(&self.growth),
        }
    }

    /// Reads while the caller takes the rows.
    pub(super) fn rows(
        &self,
        readers: Readers,
        statement: Statement,
    ) -> BoxStream<'_, Result<Row, StoreError>> {
        stream::once(self.read(readers, statement))
            .try_flatten()
            .boxed()
    }

    async fn read(
        &self,
        readers: Readers,
        statement: Statement,
    ) -> Result<ReceiverStream<RowRead>, StoreError> {
        let pool = match readers {
            Readers::Cells => &self.readers,
            Readers::Pages => &self.page_readers,
        };
        let reader = pool.get().await.map_err(|_| StoreError::Closed)?;
        let (sender, receiver) = mpsc::channel(ROWS_AHEAD);
        spawn_blocking(move || send_rows(&reader, &statement, &sender));
        Ok(ReceiverStream::new(receiver))
    }

    /// Checkpoints the log into the database file. Not needed for safety.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        self.readers.close();
        self.page_readers.close();
        let _turn = self.turn.lock().await;
        self.writer.fold("TRUNCATE").await
    }

    /// Checkpoints the log concurrently with the writer, so that no cell waits for the disk. Runs
    /// until it is dropped. Not needed for safety: otherwise the writer does it.
    pub(super) async fn keep_log_short(&self) {
        loop {
            self.growth.enough.notified().await;
            self.growth.transactions.store(0, Ordering::Relaxed);
            // A passive checkpoint neither waits for readers nor blocks the writer.
            if let Err(error) = self.folder.fold("PASSIVE").await {
                tracing::warn!("Failed to checkpoint the database's log: {error}");
            }
        }
    }
}

impl SqliteWriter {
    /// Sees all changes so far, because there is no other writer.
    pub(super) async fn list<T: Send + 'static>(
        &mut self,
        statement: Statement,
        read: impl Fn(Row) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Vec<T>, StoreError> {
        let list = move |connection: &mut Connection| {
            let mut all: Vec<Result<T, StoreError>> = Vec::new();
            each_row(connection, &statement, |row| {
                all.push(read(Row::Sqlite(row)));
                all.last().is_some_and(Result::is_ok)
            })?;
            all.into_iter().collect()
        };
        self.connection.run(list).await
    }

    /// Applies all statements or none. Continues to the end even if the caller is dropped.
    pub(super) async fn apply(self, statements: Vec<Statement>) -> Result<(), StoreError> {
        self.apply_with(statements, apply).await
    }

    /// Like [`Self::apply`], and waits until the log is on the disk.
    pub(super) async fn apply_durably(self, statements: Vec<Statement>) -> Result<(), StoreError> {
        self.apply_with(statements, |connection, statements| {
            connection.pragma_update(None, "synchronous", "FULL")?;
            let applied = apply(connection, statements);
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            applied
        })
        .await
    }

    async fn apply_with(
        self,
        statements: Vec<Statement>,
        apply: fn(&mut Connection, &[Statement]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let connection = self.connection.clone();
        let apply = move |connection: &mut Connection| {
            // Keeps the lock until the transaction has ended.
            let writer = self;
            apply(connection, &statements)?;
            writer.growth.add();
            Ok(())
        };
        connection.run(apply).await
    }
}

impl SharedConnection {
    fn new(connection: Connection) -> Self {
        Self(Arc::new(Mutex::new(connection)))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let connection = Arc::clone(&self.0);
        // If a panic interrupted a transaction, that was rolled back on drop, so the lock is safe to use.
        blocking(move || work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))).await
    }

    async fn fold(&self, how: &'static str) -> Result<(), StoreError> {
        let fold = move |connection: &mut Connection| {
            let done = |_: &rusqlite::Row<'_>| Ok(());
            Ok(connection.query_row(&format!("PRAGMA wal_checkpoint({how})"), [], done)?)
        };
        self.run(fold).await
    }
}

/// Runs work that takes as long as the file system does.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|failed| Err(StoreError::Interrupted(failed)))
}

fn apply(connection: &mut Connection, statements: &[Statement]) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
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
    Ok(transaction.commit()?)
}

fn send_rows(
    connection: &Object<Connection>,
    statement: &Statement,
    sender: &mpsc::Sender<RowRead>,
) {
    let runtime = Handle::current();
    let sent = each_row(connection, statement, |row| {
        runtime.block_on(send_row(row, sender))
    });
    if let Err(error) = sent {
        // The receiver may be gone.
        let _ = sender.blocking_send(Err(error));
    }
}

/// Returns whether the receiver still exists.
async fn send_row(row: SqliteRow, sender: &mpsc::Sender<RowRead>) -> bool {
    let room = match row.bytes() < LARGE_ROW_BYTES {
        true => 1,
        false => sender.max_capacity(),
    };
    let Ok(mut permits) = sender.reserve_many(room).await else {
        return false;
    };
    permits.next().is_some_and(|permit| {
        permit.send(Ok(Row::Sqlite(row)));
        true
    })
}

/// Calls `take` for each row until it returns `false`.
fn each_row(
    connection: &Connection,
    Statement { sql, values, .. }: &Statement,
    mut take: impl FnMut(SqliteRow) -> bool,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let columns: Arc<[String]> = statement
        .column_names()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut rows = statement.query(params_from_iter(values))?;
    while let Some(row) = rows.next()? {
        if !take(SqliteRow::read(&columns, row)?) {
            break;
        }
    }
    Ok(())
}

fn open_for_changes(database: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open(database)?;
    prepare(&connection)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    connection.pragma_update(None, "wal_autocheckpoint", AUTOMATICALLY_FOLDED_PAGES)?;
    Ok(connection)
}

fn open_for_reading(database: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags)?;
    prepare(&connection)?;
    Ok(connection)
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
    connection.busy_timeout(BUSY_TIMEOUT)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use futures_util::FutureExt;

    fn row(bytes: usize) -> SqliteRow {
        let connection = Connection::open_in_memory().unwrap();
        let columns: Arc<[String]> = ["body".to_owned()].into();
        let read = |row: &rusqlite::Row<'_>| SqliteRow::read(&columns, row);
        connection
            .query_row("SELECT zeroblob(?)", [i64::try_from(bytes).unwrap()], read)
            .unwrap()
    }

    #[test]
    fn a_large_row_waits_until_all_rows_before_it_are_taken() {
        let (sender, mut receiver) = mpsc::channel(ROWS_AHEAD);
        for _ in 0..2 {
            assert_eq!(send_row(row(1), &sender).now_or_never(), Some(true));
        }
        for left in [2, 1, 0] {
            let sent = send_row(row(LARGE_ROW_BYTES), &sender).now_or_never();
            assert_eq!(sent, (left == 0).then_some(true), "{left} rows are left");
            let taken = receiver.try_recv().unwrap();
            taken.unwrap();
        }
    }
}
