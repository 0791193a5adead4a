//! The past of courses: their jobs, the last day, and how long people waited.

use super::{
    Store, StoreError,
    columns::{account, count, number, outcome},
    jobs::seen_only,
    row::Row,
    statement::sql,
};
use baton_broker_queue::{Account, Identity};
use baton_protocol::Outcome;

pub(super) const MINUTE_MS: i64 = 60_000;
const DAY_MINUTES: i64 = 24 * 60;
const WEEK_MINUTES: i64 = 7 * DAY_MINUTES;
/// The length of a step in the chart of a day.
const STEP_MINUTES: i64 = 10;

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

/// Whose past runs to list. `None` matches any course.
#[derive(Debug, Default)]
pub struct HistoryFilter {
    /// Any of these.
    pub courses: Option<Vec<String>>,
    pub since_ms: i64,
}

/// The data of a past job from which estimates are made.
#[derive(Debug, Clone)]
pub struct HistoryRow {
    pub owner: String,
    pub submitted_ms: i64,
    pub assigned_ms: Option<i64>,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    pub outcome: Option<Outcome>,
}

/// A handle of the store for the past.
#[derive(Clone, Copy)]
pub struct Past<'store>(pub(super) &'store Store);

impl Past<'_> {
    /// Newest first.
    pub async fn jobs(
        self,
        filter: &HistoryFilter,
        limit: u32,
    ) -> Result<Vec<HistoryRow>, StoreError> {
        let mut query = sql(
            "SELECT owner, submitted_ms, assigned_ms, started_ms, finished_ms, outcome FROM jobs WHERE submitted_ms >= ",
        );
        query.push_bind(filter.since_ms);
        if let Some(courses) = &filter.courses {
            query.push(" AND course IN ").push_list(courses);
        }
        query
            .push(" ORDER BY sequence DESC LIMIT ")
            .push_bind(limit);
        self.0.list_for_pages(query, history_row).await
    }

    /// How long each job that has started since then had waited, with its account.
    pub async fn waits(
        self,
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
        let wait = |row: &Row| {
            let waited_ms: i64 = row.get("waited_ms")?;
            Ok((account(row)?, waited_ms.max(0).unsigned_abs()))
        };
        self.0.list_for_pages(query, wait).await
    }

    /// Adds a sample to its minute, and deletes samples that are older than a week.
    pub async fn add(self, look: Look) -> Result<(), StoreError> {
        let minute = look.at_ms.div_euclid(MINUTE_MS);
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
        self.0.writer().await?.apply(vec![add, forget]).await
    }

    /// The day before this time, in steps of ten minutes. Steps during which no broker ran are omitted.
    pub async fn last_day(self, now_ms: i64) -> Result<Vec<Span>, StoreError> {
        let minute = now_ms.div_euclid(MINUTE_MS);
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
                start_ms: step * STEP_MINUTES * MINUTE_MS,
                running: row.get("running")?,
                waiting: count(row.get("waiting")?)?,
                slots: count(row.get("slots")?)?,
            })
        };
        self.0.list_for_pages(query, span).await
    }
}

fn history_row(row: &Row) -> Result<HistoryRow, StoreError> {
    Ok(HistoryRow {
        owner: row.get("owner")?,
        submitted_ms: row.get("submitted_ms")?,
        assigned_ms: row.get("assigned_ms")?,
        started_ms: row.get("started_ms")?,
        finished_ms: row.get("finished_ms")?,
        outcome: outcome(row)?,
    })
}
