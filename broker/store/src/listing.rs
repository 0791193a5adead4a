//! Lists for pages and the API: rows of jobs and usage that the caller may see.

use super::{
    Store, StoreError,
    columns::{account, count, group, id, kind, number, outcome, small},
    row::Row,
    statement::{Statement, sql},
};
use baton_broker_queue::{Account, Identity, Phase};
use baton_protocol::{GroupId, JobId, JobKind, Outcome, Priority, decode};
use uuid::Uuid;

pub(super) const JOB_COLUMNS: &str = "job, sequence, notebook_name, owner, course, state, outcome, worker_name, priority, \
     timeout_ms, submitted_ms, started_ms, finished_ms, run_ms, peak_memory_bytes, execution_count, job_kind, job_group";

#[derive(Debug, Clone)]
pub struct JobRow {
    pub job: JobId,
    pub sequence: u64,
    pub notebook_name: String,
    pub kind: JobKind,
    pub group: Option<GroupId>,
    pub execution_count: Option<u32>,
    pub account: Account,
    pub phase: Phase,
    pub outcome: Option<Outcome>,
    pub worker_name: Option<String>,
    pub priority: Priority,
    pub timeout_ms: Option<u64>,
    pub submitted_ms: i64,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    pub run_ms: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
}

/// Which jobs to list. `None` and empty fields match any job.
#[derive(Debug, Default)]
pub struct JobFilter {
    pub phases: Vec<Phase>,
    pub person: Option<String>,
    pub course: Option<String>,
    /// The last hexadecimal digits of the job's id.
    pub ends_with: Option<String>,
    /// The last hexadecimal digits of its group's id.
    pub group: Option<String>,
    /// A sequence number: only jobs that were submitted before this one.
    pub before: Option<u64>,
}

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

impl Store {
    /// Newest first.
    pub async fn history(
        &self,
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
            .push_bind(i64::from(limit));
        let rows = self.fetch(query).await?;
        rows.iter().map(history_row).collect()
    }

    /// Newest first.
    pub async fn jobs(
        &self,
        seen_by: &Identity,
        filter: &JobFilter,
        limit: u32,
    ) -> Result<Vec<JobRow>, StoreError> {
        let mut query = sql(format!("SELECT {JOB_COLUMNS} FROM jobs WHERE 1 = 1"));
        seen_only(&mut query, seen_by);
        if !filter.phases.is_empty() {
            let names = filter.phases.iter().map(|phase| phase.name());
            query.push(" AND state IN ").push_list(names);
        }
        only(&mut query, "owner", filter.person.as_ref());
        only(&mut query, "course", filter.course.as_ref());
        ends_with(&mut query, "job", filter.ends_with.as_ref());
        ends_with(&mut query, "job_group", filter.group.as_ref());
        if let Some(before) = filter.before {
            query.push(" AND sequence < ").push_bind(number(before));
        }
        query
            .push(" ORDER BY sequence DESC LIMIT ")
            .push_bind(i64::from(limit));
        let rows = self.fetch(query).await?;
        rows.iter().map(job_row).collect()
    }

    /// Sorted by day, course and person.
    pub async fn usage(
        &self,
        seen_by: &Identity,
        filter: &UsageFilter,
        limit: u32,
    ) -> Result<Vec<UsageRow>, StoreError> {
        let mut query = sql("SELECT day, owner, course, run_ms, runs FROM usage WHERE 1 = 1");
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
            .push(" ORDER BY day, course, owner LIMIT ")
            .push_bind(i64::from(limit));
        let rows = self.fetch(query).await?;
        rows.iter().map(usage_row).collect()
    }

    /// The last finished jobs that the caller may see, newest first.
    pub async fn finished_jobs(
        &self,
        seen_by: &Identity,
        limit: u32,
    ) -> Result<Vec<JobRow>, StoreError> {
        let mut query = sql(format!(
            "SELECT {JOB_COLUMNS} FROM jobs WHERE state = 'finished'"
        ));
        seen_only(&mut query, seen_by);
        query
            .push(" ORDER BY finished_ms DESC LIMIT ")
            .push_bind(i64::from(limit));
        let rows = self.fetch(query).await?;
        rows.iter().map(job_row).collect()
    }
}

/// The same rule as [`Identity::may_see`].
pub(super) fn seen_only(query: &mut Statement, seen_by: &Identity) {
    let Some((person, courses)) = seen_by.sees_only() else {
        return;
    };
    query.push(" AND (owner = ").push_bind(person.to_owned());
    for course in courses {
        query.push(" OR course = ").push_bind(course.to_owned());
    }
    query.push(")");
}

/// Matches ids with these last hexadecimal digits.
fn ends_with(query: &mut Statement, column: &str, digits: Option<&String>) {
    let Some(digits) = digits else {
        return;
    };
    // A complete id can use the index instead of a scan.
    match digits.parse::<Uuid>() {
        Ok(id) => query
            .push(&format!(" AND {column} = "))
            .push_bind(id.as_bytes().to_vec()),
        Err(_) => query
            .push(&format!(
                " AND {column} IS NOT NULL AND lower(hex({column})) LIKE "
            ))
            .push_bind(format!("%{digits}")),
    };
}

fn only(query: &mut Statement, column: &str, value: Option<&String>) {
    if let Some(value) = value {
        query
            .push(&format!(" AND {column} = "))
            .push_bind(value.clone());
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

pub(super) fn job_row(row: &Row) -> Result<JobRow, StoreError> {
    let state: String = row.get("state")?;
    let counted = |column| {
        let value: Option<i64> = row.get(column)?;
        value.map(count).transpose()
    };
    Ok(JobRow {
        job: JobId(id(row, "job")?),
        sequence: count(row.get("sequence")?)?,
        notebook_name: row.get("notebook_name")?,
        kind: kind(row)?,
        group: group(row)?,
        execution_count: small(row, "execution_count")?,
        account: account(row)?,
        phase: Phase::from_name(&state).ok_or(StoreError::Damaged { what: "a state" })?,
        outcome: outcome(row)?,
        worker_name: row.get("worker_name")?,
        priority: decode(&row.get::<Vec<u8>>("priority")?)?,
        timeout_ms: counted("timeout_ms")?,
        submitted_ms: row.get("submitted_ms")?,
        started_ms: row.get("started_ms")?,
        finished_ms: row.get("finished_ms")?,
        run_ms: counted("run_ms")?,
        peak_memory_bytes: counted("peak_memory_bytes")?,
    })
}

fn usage_row(row: &Row) -> Result<UsageRow, StoreError> {
    Ok(UsageRow {
        day: row.get("day")?,
        account: account(row)?,
        run_ms: count(row.get("run_ms")?)?,
        runs: count(row.get("runs")?)?,
    })
}
