//! PostgreSQL, for several brokers. If the leader dies, another one takes over.
//!
//! The writing connection of the leader holds an advisory lock. Lock and connection belong to the
//! same session of the server, so a broker that is no longer the leader cannot write, even before
//! it learns of this. The followers keep trying to get the lock, and read the leader's address.
//!
//! After an error on a connection, the broker closes it, and loses whatever was not committed.
//!
//! Each statement with separate values takes a round trip to the server, so a transaction is sent as one text.

mod literal;

use super::{
    Readers, StoreError,
    row::Row,
    statement::{Statement, Value, check, sql},
};
use futures_util::{
    Stream, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, PgPool, Postgres,
    migrate::Migrator,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow},
    query::Query,
    raw_sql,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::timeout,
};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations/postgres");

/// An arbitrary number, which is the same in every version of the broker.
const LEADER_LOCK: i64 = 0x0062_6174_6f6e;
/// The oldest version that was tested.
const OLDEST: i32 = 15;
/// A server that does not answer for this long is considered lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// With these keep-alives the server notices after 5 + 3 * 2 s that a broker's machine is gone.
const SERVER_SETTINGS: [(&str, &str); 4] = [
    (literal::PLAIN_TEXTS, "on"),
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "2"),
    ("tcp_keepalives_count", "3"),
];

#[derive(Clone)]
pub struct PostgresStore {
    options: Arc<PgConnectOptions>,
    writer: Arc<Mutex<Writer>>,
    readers: PgPool,
    page_readers: PgPool,
}

#[derive(Default)]
struct Writer {
    connection: Option<PgConnection>,
    is_leader: bool,
}

pub(super) struct PostgresWriter(OwnedMutexGuard<Writer>);

impl PostgresStore {
    /// Connects on first use.
    pub(super) fn new(options: PgConnectOptions) -> Self {
        let options = options
            .application_name("baton broker")
            .options(SERVER_SETTINGS)
            .disable_statement_logging();
        let pool = |readers: Readers| {
            PgPoolOptions::new()
                .max_connections(readers.connections())
                .acquire_timeout(PATIENCE)
                .connect_lazy_with(options.clone())
        };
        Self {
            readers: pool(Readers::Cells),
            page_readers: pool(Readers::Pages),
            writer: Arc::default(),
            options: Arc::new(options),
        }
    }

    /// Makes this broker the leader on this database, and migrates the database to this version.
    ///
    /// # Errors
    /// [`StoreError::OtherLeader`] if another broker is the leader.
    pub(super) async fn acquire_leadership(&self) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let found = self.try_lock(&mut writer).await;
        writer.is_leader = found.is_ok();
        if !matches!(found, Ok(()) | Err(StoreError::OtherLeader { .. })) {
            writer.connection = None;
        }
        found
    }

    async fn try_lock(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let connection = match &mut writer.connection {
            Some(connection) => connection,
            none => none.insert(in_time(self.connect()).await?),
        };
        if writer.is_leader {
            return in_time(async { Ok(connection.ping().await?) }).await;
        }
        in_time(acquire_lock(connection)).await?;
        // Migrations have no time limit.
        MIGRATIONS.run_direct(None, connection, false).await?;
        Ok(())
    }

    /// Fails unless this broker has been the leader since it acquired the lock.
    pub(super) async fn check_leadership(&self) -> Result<(), StoreError> {
        self.writer().await?.list(sql("SELECT 1"), Ok).await?;
        Ok(())
    }

    pub(super) async fn writer(&self) -> Result<PostgresWriter, StoreError> {
        let writer = Arc::clone(&self.writer).lock_owned().await;
        if writer.is_leader && writer.connection.is_some() {
            Ok(PostgresWriter(writer))
        } else {
            Err(StoreError::NotLeader)
        }
    }

    pub(super) fn rows(
        &self,
        readers: Readers,
        statement: Statement,
    ) -> BoxStream<'_, Result<Row, StoreError>> {
        let pool = match readers {
            Readers::Cells => &self.readers,
            Readers::Pages => &self.page_readers,
        };
        Box::pin(in_time_each(query(statement).fetch(pool)))
    }

    /// Releases the lock, so that another broker can become the leader.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        self.readers.close().await;
        self.page_readers.close().await;
        let Writer {
            connection,
            is_leader,
        } = std::mem::take(&mut *self.writer.lock().await);
        let Some(mut connection) = connection else {
            return Ok(());
        };
        // The server ends the session of a closed connection some time later, so release the lock first.
        if is_leader {
            in_time(release_lock(&mut connection)).await?;
        }
        Ok(connection.close().await?)
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        let mut connection = self.options.connect().await.map_err(|source| {
            let server = self.options.get_host().to_owned();
            StoreError::Unreachable { server, source }
        })?;
        let version: String = sqlx::query_scalar("SHOW server_version_num")
            .fetch_one(&mut connection)
            .await?;
        // 150004 is 15.4.
        let version = version.parse::<i32>().unwrap_or(0) / 10_000;
        if version < OLDEST {
            return Err(StoreError::OldServer {
                version,
                oldest: OLDEST,
            });
        }
        Ok(connection)
    }
}

/// Stores the address at which the other brokers can reach this one.
pub(super) fn announcement(address: &str) -> Statement {
    sql("INSERT INTO leader (number, address) VALUES (1, ?)
         ON CONFLICT (number) DO UPDATE SET address = excluded.address")
    .bind(address)
}

async fn acquire_lock(connection: &mut PgConnection) -> Result<(), StoreError> {
    let is_leader: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
        .bind(LEADER_LOCK)
        .fetch_one(&mut *connection)
        .await?;
    if is_leader {
        return Ok(());
    }
    let known: bool = sqlx::query_scalar("SELECT to_regclass('leader') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    let leader = if known {
        sqlx::query_scalar("SELECT address FROM leader")
            .fetch_optional(connection)
            .await?
    } else {
        None
    };
    Err(StoreError::OtherLeader { leader })
}

async fn release_lock(connection: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query("SELECT pg_advisory_unlock($1)")
        .bind(LEADER_LOCK)
        .execute(connection)
        .await?;
    Ok(())
}

impl PostgresWriter {
    /// The server may take a long time in total, but not for the next row.
    pub(super) async fn list<T>(
        &mut self,
        statement: Statement,
        read: impl Fn(Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let Some(connection) = &mut self.0.connection else {
            return Err(StoreError::NotLeader);
        };
        let rows = in_time_each(query(statement).fetch(connection));
        let all = rows.map(|row| read(row?)).try_collect().await;
        self.keep_if_sound(all)
    }

    /// Must run to its end. Otherwise the connection is left inside a transaction.
    pub(super) async fn apply(mut self, statements: Vec<Statement>) -> Result<(), StoreError> {
        let Some(connection) = &mut self.0.connection else {
            return Err(StoreError::NotLeader);
        };
        let applied = in_time(apply(connection, statements)).await;
        self.keep_if_sound(applied)
    }

    fn keep_if_sound<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if !matches!(done, Ok(_) | Err(StoreError::Conflict { .. })) {
            *self.0 = Writer::default();
        }
        done
    }
}

async fn apply(
    connection: &mut PgConnection,
    statements: Vec<Statement>,
) -> Result<(), StoreError> {
    let checks: Vec<_> = statements
        .iter()
        .map(|statement| statement.changes)
        .collect();
    let text = raw_sql(AssertSqlSafe(literal::transaction(&statements)));
    drop(statements);
    let results: Vec<_> = text.execute_many(&mut *connection).try_collect().await?;
    // The first result is that of `BEGIN`.
    let mut changes = checks.into_iter().zip(&results[1..]);
    let changed = changes.try_for_each(|(job, result)| check(job, result.rows_affected()));
    let end = if changed.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    connection.execute(end).await?;
    changed
}

async fn in_time<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(PATIENCE, work)
        .await
        .unwrap_or(Err(StoreError::Silent { after: PATIENCE }))
}

/// The rows, and an error if one takes too long.
fn in_time_each<'rows>(
    rows: BoxStream<'rows, sqlx::Result<PgRow>>,
) -> impl Stream<Item = Result<Row, StoreError>> + Send + 'rows {
    stream::unfold(rows, async |mut rows| {
        let next = in_time(async { Ok(rows.try_next().await?) });
        let row = next.await.transpose()?.map(Row::Postgres);
        Some((row, rows))
    })
}

/// Replaces `?` by `$1`, `$2` and so on.
fn query(statement: Statement) -> Query<'static, Postgres, PgArguments> {
    let mut text = String::with_capacity(statement.sql.len() + 2 * statement.values.len());
    for (number, part) in statement.sql.split('?').enumerate() {
        if number > 0 {
            text.push_str(&format!("${number}"));
        }
        text.push_str(part);
    }
    let query = sqlx::query(AssertSqlSafe(text));
    let values = statement.values.into_iter();
    values.fold(query, |query, value| match value {
        Value::Integer(integer) => query.bind(integer),
        Value::Real(real) => query.bind(real),
        Value::Text(text) => query.bind(text.map(|text| literal::storable(&text).into_owned())),
        Value::Bytes(bytes) => query.bind(bytes),
    })
}
