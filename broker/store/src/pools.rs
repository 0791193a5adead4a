//! Pools, and the workers that were requested for them.

use super::{
    Store, StoreError,
    columns::small,
    row::Row,
    statement::{Statement, sql},
    workers,
};
use baton_protocol::{Machine, decode, encode, worker::Device};
use baton_scheduling::queue::Offer;

/// How many ended workers are kept. They show how long a start takes.
const MOST_ENDED: i64 = 50;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRow {
    pub name: String,
    /// Failed starts since the last successful one.
    pub failures: u32,
    /// Why the last one failed.
    pub words: Option<String>,
    /// What its workers offer; unknown until one has connected.
    pub offer: Option<Offer>,
    /// A digest of the settings under which they offered it.
    pub settings: String,
    /// The slots of each worker.
    pub slots: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolWorkerRow {
    pub name: String,
    pub pool: String,
    pub token_hash: String,
    /// Whether it stays when it is idle.
    pub kept: bool,
    /// Its job in the batch system.
    pub job: Option<String>,
    pub submitted_ms: i64,
    pub connected_ms: Option<i64>,
    pub ended_ms: Option<i64>,
}

/// Records the connection of a worker, which may belong to a pool.
pub(super) fn connected(name: &str, at_ms: i64) -> Statement {
    sql("UPDATE pool_workers SET connected_ms = ? WHERE name = ? AND connected_ms IS NULL")
        .bind(at_ms)
        .bind(name)
}

/// A handle of the store for pools.
#[derive(Clone, Copy)]
pub struct Pools<'store>(pub(super) &'store Store);

impl Pools<'_> {
    /// The pools, and their workers in order of submission.
    pub async fn all(self) -> Result<(Vec<PoolRow>, Vec<PoolWorkerRow>), StoreError> {
        let pools = sql("SELECT name, failures, words, offer, slots FROM pools");
        let workers = sql(
            "SELECT name, pool, token_hash, kept, job, submitted_ms, connected_ms, ended_ms
             FROM pool_workers ORDER BY submitted_ms, name",
        );
        let pools = self.0.list(pools, pool).await?;
        Ok((pools, self.0.list(workers, worker).await?))
    }

    /// The workers that have not ended, but have never connected or were gone before this time.
    pub async fn absent(self, gone_before_ms: i64) -> Result<Vec<PoolWorkerRow>, StoreError> {
        let workers = sql(
            "SELECT name, pool, token_hash, kept, job, submitted_ms, connected_ms, ended_ms
             FROM pool_workers WHERE ended_ms IS NULL AND NOT EXISTS (
                 SELECT 1 FROM workers
                 WHERE workers.name = pool_workers.name AND (gone_ms IS NULL OR gone_ms >= ?)
             ) ORDER BY submitted_ms, name",
        )
        .bind(gone_before_ms);
        self.0.list(workers, worker).await
    }

    /// Records that all workers are gone: a broker that starts does not know which of them left before. Each that
    /// connects again is no longer gone.
    pub async fn lose_workers(self, at_ms: i64) -> Result<(), StoreError> {
        let lost = vec![workers::lose_all(at_ms)];
        self.0.writer().await?.apply(lost).await
    }

    /// The name of the worker with this token, unless it has ended.
    pub async fn worker_with_token(self, token_hash: &str) -> Result<Option<String>, StoreError> {
        let worker = sql("SELECT name FROM pool_workers WHERE token_hash = ? AND ended_ms IS NULL");
        self.0
            .first(worker.bind(token_hash), |row| row.get("name"))
            .await
    }

    pub async fn keep(self, row: &PoolRow) -> Result<(), StoreError> {
        let offer = row.offer.as_ref();
        let offer = offer.map(|offer| encode(&(&offer.devices, &offer.machine, &row.settings)));
        let insert = sql(
            "INSERT INTO pools (name, failures, words, offer, slots) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET failures = excluded.failures, words = excluded.words,
             offer = excluded.offer, slots = excluded.slots",
        )
        .bind(&row.name)
        .bind(row.failures)
        .bind(row.words.clone())
        .bind(offer)
        .bind(row.slots);
        self.0.writer().await?.apply(vec![insert]).await
    }

    /// When a worker of a pool first connected. It is recorded before the broker welcomes the worker.
    pub async fn worker_connected_ms(self, name: &str) -> Result<Option<i64>, StoreError> {
        let worker = sql("SELECT connected_ms FROM pool_workers WHERE name = ?").bind(name);
        let connected_ms = |row: &Row| row.get("connected_ms");
        Ok(self.0.first(worker, connected_ms).await?.flatten())
    }

    /// Also deletes old workers of the pool. This does not record when a worker connected: only
    /// [`Write::SeeWorker`](super::Write::SeeWorker) does that.
    pub async fn keep_worker(self, row: &PoolWorkerRow) -> Result<(), StoreError> {
        let insert = sql(
            "INSERT INTO pool_workers (name, pool, token_hash, kept, job, submitted_ms, connected_ms, ended_ms)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET job = excluded.job, ended_ms = excluded.ended_ms",
        )
        .bind(&row.name)
        .bind(&row.pool)
        .bind(&row.token_hash)
        .bind(i64::from(row.kept))
        .bind(row.job.clone())
        .bind(row.submitted_ms)
        .bind(row.connected_ms)
        .bind(row.ended_ms);
        let old = sql(
            "DELETE FROM pool_workers WHERE name IN (SELECT name FROM pool_workers
             WHERE pool = ? AND ended_ms IS NOT NULL ORDER BY submitted_ms DESC LIMIT 1000000000 OFFSET ?)",
        )
        .bind(&row.pool)
        .bind(MOST_ENDED);
        self.0.writer().await?.apply(vec![insert, old]).await
    }
}

fn pool(row: &Row) -> Result<PoolRow, StoreError> {
    let offer: Option<Vec<u8>> = row.get("offer")?;
    // Former versions stored no settings. What they stored counts as unknown.
    let offer = offer.and_then(|offer| decode::<(Vec<Device>, Machine, String)>(&offer).ok());
    let (offer, settings) = match offer {
        Some((devices, machine, settings)) => (Some(Offer { devices, machine }), settings),
        None => (None, String::new()),
    };
    Ok(PoolRow {
        name: row.get("name")?,
        failures: small(row, "failures")?.unwrap_or(0),
        words: row.get("words")?,
        offer,
        settings,
        slots: small(row, "slots")?.unwrap_or(1),
    })
}

fn worker(row: &Row) -> Result<PoolWorkerRow, StoreError> {
    Ok(PoolWorkerRow {
        name: row.get("name")?,
        pool: row.get("pool")?,
        token_hash: row.get("token_hash")?,
        kept: row.get::<i64>("kept")? != 0,
        job: row.get("job")?,
        submitted_ms: row.get("submitted_ms")?,
        connected_ms: row.get("connected_ms")?,
        ended_ms: row.get("ended_ms")?,
    })
}
