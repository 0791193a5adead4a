//! What pages show of the past: the details of a job, the last day, and how long people waited.

use super::{
    JobRow, Store, StoreError,
    columns::{account, count, number},
    listing::{JOB_COLUMNS, job_row, seen_only},
    row::Row,
    statement::sql,
};
use baton_broker_queue::{Account, Identity, MemoryCurve};
use baton_protocol::{GpuUsage, JobEvent, JobId, Output, RemoteError, decode};

const DAY_MINUTES: i64 = 24 * 60;
const WEEK_MINUTES: i64 = 7 * DAY_MINUTES;
/// The length of a step in the chart of a day.
const STEP_MINUTES: i64 = 10;

/// Everything that is stored about a job for people.
#[derive(Debug)]
pub struct JobDetail {
    pub row: JobRow,
    pub assigned_ms: Option<i64>,
    pub sent_bytes: Option<u64>,
    pub returned_bytes: Option<u64>,
    pub error: Option<RemoteError>,
    pub memory: MemoryCurve,
    pub gpu: Option<GpuUsage>,
}

/// One sample of the queue.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub at_ms: i64,
    pub running: u64,
    pub waiting: u64,
    pub slots: u64,
}

/// Ten minutes of the past.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub start_ms: i64,
    /// The average.
    pub running: f64,
    /// The maximum.
    pub waiting: u64,
    pub slots: u64,
}

impl Store {
    pub async fn job_detail(
        &self,
        seen_by: &Identity,
        job: JobId,
    ) -> Result<Option<JobDetail>, StoreError> {
        let mut query = sql(format!(
            "SELECT {JOB_COLUMNS}, assigned_ms, sent_bytes, returned_bytes, error, memory, gpu FROM jobs WHERE job = "
        ));
        query.push_bind(job.0.as_bytes().to_vec());
        seen_only(&mut query, seen_by);
        let Some(row) = self.fetch(query).await?.pop() else {
            return Ok(None);
        };
        let bytes = |column| {
            let value: Option<i64> = row.get(column)?;
            value.map(count).transpose()
        };
        let error: Option<Vec<u8>> = row.get("error")?;
        let memory: Option<Vec<u8>> = row.get("memory")?;
        let gpu: Option<Vec<u8>> = row.get("gpu")?;
        Ok(Some(JobDetail {
            row: job_row(&row)?,
            assigned_ms: row.get("assigned_ms")?,
            sent_bytes: bytes("sent_bytes")?,
            returned_bytes: bytes("returned_bytes")?,
            error: error.map(|error| decode(&error)).transpose()?,
            memory: MemoryCurve(memory.map_or(Ok(Vec::new()), |memory| decode(&memory))?),
            gpu: gpu.map(|gpu| decode(&gpu)).transpose()?,
        }))
    }

    /// The last stored outputs of a job, in order.
    pub async fn last_outputs(&self, job: JobId, limit: u32) -> Result<Vec<Output>, StoreError> {
        let query = sql(
            "SELECT body FROM events WHERE job = ? AND kind = 'output' ORDER BY number DESC LIMIT ?",
        )
        .bind(job.0.as_bytes().as_slice())
        .bind(i64::from(limit));
        let rows = self.fetch(query).await?;
        let mut outputs = Vec::with_capacity(rows.len());
        for row in rows.iter().rev() {
            if let JobEvent::Output(output) = decode(&row.get::<Vec<u8>>("body")?)? {
                outputs.push(output);
            }
        }
        Ok(outputs)
    }

    /// How long each job that has started since then had waited, with its account.
    pub async fn waits(
        &self,
        seen_by: &Identity,
        course: Option<&str>,
        since_ms: i64,
    ) -> Result<Vec<(Account, u64)>, StoreError> {
        let mut query = sql(
            "SELECT owner, course, started_ms - submitted_ms AS waited_ms FROM jobs WHERE started_ms >= ",
        );
        query.push_bind(since_ms);
        seen_only(&mut query, seen_by);
        if let Some(course) = course {
            query.push(" AND course = ").push_bind(course.to_owned());
        }
        let rows = self.fetch(query).await?;
        let wait = |row: &Row| {
            let waited_ms: i64 = row.get("waited_ms")?;
            Ok((account(row)?, waited_ms.max(0).unsigned_abs()))
        };
        rows.iter().map(wait).collect()
    }

    /// Adds a sample to its minute, and deletes samples that are older than a week.
    pub async fn look(&self, look: Look) -> Result<(), StoreError> {
        let minute = look.at_ms.div_euclid(60_000);
        let add = sql(
            "INSERT INTO minutes (minute, looks, running, waiting, slots) VALUES (?, 1, ?, ?, ?)
             ON CONFLICT (minute) DO UPDATE SET looks = minutes.looks + 1,
             running = minutes.running + excluded.running, slots = excluded.slots, waiting =
             CASE WHEN excluded.waiting > minutes.waiting THEN excluded.waiting ELSE minutes.waiting END",
        )
        .bind(minute)
        .bind(number(look.running))
        .bind(number(look.waiting))
        .bind(number(look.slots));
        let forget = sql("DELETE FROM minutes WHERE minute < ?");
        let forget = forget.bind(minute - WEEK_MINUTES - DAY_MINUTES);
        self.writer().await?.apply(vec![add, forget]).await
    }

    /// The day before this time, in steps of ten minutes. Steps during which no broker ran are omitted.
    pub async fn last_day(&self, now_ms: i64) -> Result<Vec<Span>, StoreError> {
        let minute = now_ms.div_euclid(60_000);
        let first = (minute - DAY_MINUTES).div_euclid(STEP_MINUTES) + 1;
        let query = sql(
            "SELECT minute / ? AS step, CAST(SUM(running) AS DOUBLE PRECISION) / SUM(looks) AS running,
             MAX(waiting) AS waiting, MAX(slots) AS slots
             FROM minutes WHERE minute >= ? AND minute <= ? GROUP BY step ORDER BY step",
        )
        .bind(STEP_MINUTES)
        .bind(first * STEP_MINUTES)
        .bind(minute);
        let span = |row: &Row| {
            let step: i64 = row.get("step")?;
            Ok(Span {
                start_ms: step * STEP_MINUTES * 60_000,
                running: row.get("running")?,
                waiting: count(row.get("waiting")?)?,
                slots: count(row.get("slots")?)?,
            })
        };
        self.fetch(query).await?.iter().map(span).collect()
    }
}
