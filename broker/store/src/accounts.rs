//! What accounts hold and use.

use super::{
    Store, StoreError, Writer,
    columns::{account, count, number},
    jobs::{only, seen_only},
    row::Row,
    statement::{Statement, sql},
};
use baton_broker_queue::{Account, Identity, Spent};
use baton_protocol::{LEAST_COUNTED_BYTES, NotebookId, WorkerId};

/// The length of a day in [`UsageRow`].
pub const DAY_MS: i64 = 24 * 3600 * 1000;

/// Which rows of usage to list. `None` matches any row.
#[derive(Debug, Default)]
pub struct UsageFilter {
    /// Days since 1970.
    pub from: Option<i64>,
    pub to: Option<i64>,
    pub person: Option<String>,
    pub course: Option<String>,
    /// Only rows after this one.
    pub after: Option<(i64, Account)>,
}

/// What an account used on one day.
#[derive(Debug)]
pub struct UsageRow {
    /// Days since 1970, in UTC.
    pub day: i64,
    pub account: Account,
    pub run_ms: u64,
    pub runs: u64,
}

/// What was used, in sums.
#[derive(Debug)]
pub struct UsageSums {
    /// Days since 1970, and milliseconds of GPU time.
    pub by_day: Vec<(i64, u64)>,
    /// Milliseconds of GPU time, and the number of runs.
    pub by_account: Vec<(Account, u64, u64)>,
}

/// A handle of the store for what accounts hold and use.
#[derive(Clone, Copy)]
pub struct Accounts<'store>(pub(super) &'store Store);

impl Accounts<'_> {
    /// The bytes that a person uses in all courses: in chunks, as they are counted, in open jobs and their events, and in
    /// saved states.
    pub async fn held_bytes(self, owner: &str) -> Result<u64, StoreError> {
        let sum = sql(
            "SELECT CAST((SELECT COALESCE(SUM(CASE WHEN bytes < ? THEN ? ELSE bytes END), 0) FROM chunks WHERE owner = ?)
             + (SELECT COALESCE(SUM(LENGTH(cell) + LENGTH(manifest)), 0) FROM jobs WHERE closed = 0 AND owner = ?)
             + (SELECT COALESCE(SUM(LENGTH(body)), 0) FROM jobs JOIN events ON events.job = jobs.job
                WHERE closed = 0 AND owner = ?)
             + (SELECT COALESCE(SUM(LENGTH(body) + LENGTH(chunks)), 0) FROM states WHERE owner = ?)
             AS BIGINT) AS total",
        );
        let least = number(LEAST_COUNTED_BYTES);
        let sum = sum.bind(least).bind(least).bind(owner);
        let sum = sum.bind(owner).bind(owner).bind(owner);
        self.0.total(sum).await
    }

    /// The account of this notebook, if the worker `by` (or any worker, if `None`) has an open job
    /// of it. Once a job is assigned again, its earlier worker no longer serves it.
    pub async fn served(
        self,
        notebook: NotebookId,
        by: Option<WorkerId>,
    ) -> Result<Option<Account>, StoreError> {
        let mut job = sql("SELECT owner, course FROM jobs WHERE notebook = ? AND closed = 0 AND worker IS NOT NULL")
            .bind(notebook.0);
        if let Some(worker) = by {
            job.push(" AND worker = ").push_bind(worker.0);
        }
        job.push(" LIMIT 1");
        self.0.first(job, account).await
    }

    /// Sorted by day, course and person.
    pub async fn usage(
        self,
        seen_by: &Identity,
        filter: &UsageFilter,
        limit: u32,
    ) -> Result<Vec<UsageRow>, StoreError> {
        let mut query = usage("day, owner, course, run_ms, runs", seen_by, filter);
        query
            .push(" ORDER BY day, course, owner LIMIT ")
            .push_bind(limit);
        self.0.list_for_pages(query, usage_row).await
    }

    pub async fn usage_sums(
        self,
        seen_by: &Identity,
        filter: &UsageFilter,
    ) -> Result<UsageSums, StoreError> {
        let run_ms = "CAST(SUM(run_ms) AS BIGINT) AS run_ms";
        let mut by_day = usage(&format!("day, {run_ms}"), seen_by, filter);
        by_day.push(" GROUP BY day");
        let runs = "CAST(SUM(runs) AS BIGINT) AS runs";
        let mut by_account = usage(&format!("owner, course, {run_ms}, {runs}"), seen_by, filter);
        by_account.push(" GROUP BY owner, course");
        let of_day = |row: &Row| Ok((row.get("day")?, count(row.get("run_ms")?)?));
        let of_account = |row: &Row| {
            let (run_ms, runs) = (count(row.get("run_ms")?)?, count(row.get("runs")?)?);
            Ok((account(row)?, run_ms, runs))
        };
        Ok(UsageSums {
            by_day: self.0.list_for_pages(by_day, of_day).await?,
            by_account: self.0.list_for_pages(by_account, of_account).await?,
        })
    }
}

fn usage(columns: &str, seen_by: &Identity, filter: &UsageFilter) -> Statement {
    let mut query = sql(format!("SELECT {columns} FROM usage WHERE 1 = 1"));
    seen_only(&mut query, seen_by);
    only(&mut query, "owner", filter.person.as_ref());
    only(&mut query, "course", filter.course.as_ref());
    if let Some(from) = filter.from {
        query.push(" AND day >= ").push_bind(from);
    }
    if let Some(to) = filter.to {
        query.push(" AND day <= ").push_bind(to);
    }
    if let Some((day, account)) = &filter.after {
        query
            .push(" AND (day, course, owner) > (")
            .push_bind(*day)
            .push(", ")
            .push_bind(&account.course)
            .push(", ")
            .push_bind(&account.owner)
            .push(")");
    }
    query
}

fn usage_row(row: &Row) -> Result<UsageRow, StoreError> {
    Ok(UsageRow {
        day: row.get("day")?,
        account: account(row)?,
        run_ms: count(row.get("run_ms")?)?,
        runs: count(row.get("runs")?)?,
    })
}

pub(super) async fn spent(writer: &mut Writer) -> Result<Vec<(Account, Spent)>, StoreError> {
    let rows = sql("SELECT owner, course, faded_ms, at_ms, period_start_ms, period_ms FROM spent");
    let rows = writer.fetch(rows).await?;
    let spent = |row: &Row| {
        let spent = Spent {
            faded_ms: row.get("faded_ms")?,
            at_ms: row.get("at_ms")?,
            period_start_ms: row.get("period_start_ms")?,
            period_ms: count(row.get("period_ms")?)?,
        };
        Ok((account(row)?, spent))
    };
    rows.iter().map(spent).collect()
}

pub(super) fn set_spent(account: &Account, spent: &Spent) -> Statement {
    sql(
        "INSERT INTO spent (owner, course, faded_ms, at_ms, period_start_ms, period_ms) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (owner, course) DO UPDATE SET faded_ms = excluded.faded_ms, at_ms = excluded.at_ms,
         period_start_ms = excluded.period_start_ms, period_ms = excluded.period_ms",
    )
    .bind_account(account)
    .bind(spent.faded_ms)
    .bind(spent.at_ms)
    .bind(spent.period_start_ms)
    .bind(number(spent.period_ms))
}

pub(super) fn add_usage(account: &Account, run_ms: u64, at_ms: i64) -> Statement {
    sql(
        "INSERT INTO usage (day, owner, course, run_ms, runs) VALUES (?, ?, ?, ?, 1)
         ON CONFLICT (day, owner, course) DO UPDATE SET run_ms = usage.run_ms + excluded.run_ms,
         runs = usage.runs + 1",
    )
    .bind(at_ms.div_euclid(DAY_MS))
    .bind_account(account)
    .bind(number(run_ms))
}
