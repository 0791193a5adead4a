//! The rows of jobs: those that a caller may see, what a worker needs of a job, and what the sweep deletes.

use super::{
    Store, StoreError,
    columns::{account, cell_key, count, group, id, kind, number, outcome, small, stopped},
    row::Row,
    statement::{Statement, sql},
    workers,
};
use baton_broker_queue::{Account, Identity, MemoryCurve, Phase, StopReason};
use baton_protocol::{
    GpuUsage, GroupId, JobId, JobKind, NotebookId, Outcome, Priority, RemoteError, Submission,
    decode,
};
use uuid::Uuid;

const JOB_COLUMNS: &str = "job, sequence, notebook_name, owner, course, state, outcome, worker_name, priority, \
     timeout_ms, submitted_ms, started_ms, finished_ms, run_ms, peak_memory_bytes, execution_count, job_kind, job_group, \
     stopped";

/// Jobs deleted in one transaction. Writes of the queue wait for each.
const DELETE_BATCH: usize = 64;

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
    pub stopped: Option<StopReason>,
    pub worker_name: Option<String>,
    pub priority: Priority,
    pub timeout_ms: Option<u64>,
    pub submitted_ms: i64,
    pub started_ms: Option<i64>,
    pub finished_ms: Option<i64>,
    pub run_ms: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
}

impl JobRow {
    /// How long it ran or has been running, without the time for which the broker waited for a lost worker.
    pub fn ran_ms(&self, now_ms: i64) -> Option<i64> {
        let started_ms = self.started_ms?;
        let run_ms = self.run_ms.and_then(|ms| i64::try_from(ms).ok());
        run_ms.or(Some(self.finished_ms.unwrap_or(now_ms) - started_ms))
    }
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

/// A handle of the store for jobs.
#[derive(Clone, Copy)]
pub struct Jobs<'store>(pub(super) &'store Store);

impl Jobs<'_> {
    /// Returns `None` if the job is finished or unknown.
    pub async fn submission(self, job: JobId) -> Result<Option<Submission>, StoreError> {
        let query = sql(
            "SELECT notebook, notebook_name, cell_key, priority, job_group, cell, manifest FROM jobs
             WHERE job = ? AND cell IS NOT NULL AND manifest IS NOT NULL",
        )
        .bind(job.0);
        let Some(row) = self.0.fetch(query).await?.pop() else {
            return Ok(None);
        };
        Ok(Some(Submission {
            job,
            notebook: NotebookId(id(&row, "notebook")?),
            notebook_name: row.get("notebook_name")?,
            cell_key: cell_key(&row)?,
            priority: decode(&row.get::<Vec<u8>>("priority")?)?,
            group: group(&row)?,
            cell: decode(&row.get::<Vec<u8>>("cell")?)?,
            state: decode(&row.get::<Vec<u8>>("manifest")?)?,
        }))
    }

    /// Newest first.
    pub async fn matching(
        self,
        seen_by: &Identity,
        filter: &JobFilter,
        limit: u32,
    ) -> Result<Vec<JobRow>, StoreError> {
        self.0
            .list_for_pages(matching(seen_by, filter, limit), job_row)
            .await
    }

    /// The last finished jobs that the caller may see, newest first.
    pub async fn finished(self, seen_by: &Identity, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.0
            .list_for_pages(finished(seen_by, limit), job_row)
            .await
    }

    pub async fn detail(
        self,
        seen_by: &Identity,
        job: JobId,
    ) -> Result<Option<JobDetail>, StoreError> {
        let mut query = sql(format!(
            "SELECT {JOB_COLUMNS}, assigned_ms, sent_bytes, returned_bytes, error, memory, gpu FROM jobs WHERE job = "
        ));
        query.push_bind(job.0);
        seen_only(&mut query, seen_by);
        let Some(row) = self.0.fetch(query).await?.pop() else {
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

    /// When the newest of the jobs before this time was submitted; `None` if there are none.
    pub async fn newest_ms(self, before_ms: i64) -> Result<Option<i64>, StoreError> {
        let newest = sql(
            "SELECT submitted_ms FROM jobs WHERE submitted_ms < ? ORDER BY sequence DESC LIMIT 1",
        );
        let newest = newest.bind(before_ms);
        self.0.first(newest, |row| row.get("submitted_ms")).await
    }

    /// Deletes the outputs of closed jobs that ended before this time.
    pub async fn delete_old_outputs(self, finished_before_ms: i64) -> Result<(), StoreError> {
        let printed = "AND EXISTS (SELECT 1 FROM events WHERE events.job = jobs.job)";
        self.delete_of_old_jobs("events", printed, finished_before_ms)
            .await?;
        Ok(())
    }

    /// Deletes the rows of closed jobs that ended before this time, and returns their ids. Their outputs must be deleted
    /// already.
    pub async fn delete_old(self, finished_before_ms: i64) -> Result<Vec<JobId>, StoreError> {
        let lost = workers::delete_lost(finished_before_ms);
        self.0.writer().await?.apply(vec![lost]).await?;
        self.delete_of_old_jobs("jobs", "", finished_before_ms)
            .await
    }

    /// Finds the jobs without the writer, and releases the writer between batches. Returns the jobs.
    async fn delete_of_old_jobs(
        self,
        table: &str,
        condition: &str,
        finished_before_ms: i64,
    ) -> Result<Vec<JobId>, StoreError> {
        // A closed job is always finished; the condition on `state` lets the database use its index.
        let old = sql(format!(
            "SELECT job FROM jobs WHERE state = 'finished' AND closed = 1 AND finished_ms < ? {condition}"
        ));
        let job = |row: &Row| Ok(JobId(id(row, "job")?));
        let old: Vec<JobId> = self.0.list(old.bind(finished_before_ms), job).await?;
        for batch in old.chunks(DELETE_BATCH) {
            let mut delete = sql(format!("DELETE FROM {table} WHERE job IN "));
            delete.push_list(batch.iter().map(|job| job.0));
            self.0.writer().await?.apply(vec![delete]).await?;
        }
        Ok(old)
    }
}

pub(super) fn matching(seen_by: &Identity, filter: &JobFilter, limit: u32) -> Statement {
    let mut condition = sql("1 = 1");
    if !filter.phases.is_empty() {
        let names = filter.phases.iter().map(|phase| phase.name());
        condition.push(" AND state IN ").push_list(names);
    }
    only(&mut condition, "owner", filter.person.as_ref());
    only(&mut condition, "course", filter.course.as_ref());
    ends_with(&mut condition, "job", filter.ends_with.as_ref());
    ends_with(&mut condition, "job_group", filter.group.as_ref());
    if let Some(before) = filter.before {
        condition.push(" AND sequence < ").push_bind(number(before));
    }
    newest(seen_by, &condition, "sequence", limit)
}

pub(super) fn finished(seen_by: &Identity, limit: u32) -> Statement {
    newest(seen_by, &sql("state = 'finished'"), "finished_ms", limit)
}

/// The newest jobs that the caller may see. The jobs of the person and of each course are searched separately, because
/// with an `OR` the database would read all of them, or those of everyone.
fn newest(seen_by: &Identity, condition: &Statement, order: &str, limit: u32) -> Statement {
    let scopes = match seen_by.sees_only() {
        None => vec![None],
        Some((person, courses)) => {
            let courses = courses.into_iter().map(|course| Some(("course", course)));
            std::iter::once(Some(("owner", person)))
                .chain(courses)
                .collect()
        }
    };
    let order = format!(" ORDER BY {order} DESC LIMIT ");
    let mut query = sql(format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job IN ("));
    for (number, scope) in scopes.into_iter().enumerate() {
        if number > 0 {
            query.push(" UNION ");
        }
        query.push("SELECT job FROM (SELECT job FROM jobs WHERE ");
        if let Some((column, value)) = scope {
            query
                .push(column)
                .push(" = ")
                .push_bind(value)
                .push(" AND ");
        }
        query.push_statement(condition).push(&order);
        query.push_bind(limit).push(") AS newest");
    }
    query.push(")").push(&order).push_bind(limit);
    query
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
        Ok(id) => query.push(&format!(" AND {column} = ")).push_bind(id),
        Err(_) => query
            .push(&format!(
                " AND {column} IS NOT NULL AND lower(hex({column})) LIKE "
            ))
            .push_bind(format!("%{digits}")),
    };
}

pub(super) fn only(query: &mut Statement, column: &str, value: Option<&String>) {
    if let Some(value) = value {
        query
            .push(&format!(" AND {column} = "))
            .push_bind(value.clone());
    }
}

fn job_row(row: &Row) -> Result<JobRow, StoreError> {
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
        stopped: stopped(row)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_job_ran_until_its_worker_was_lost() {
        let mut row = JobRow {
            job: JobId(Uuid::nil()),
            sequence: 1,
            notebook_name: String::new(),
            kind: JobKind::Cell,
            group: None,
            execution_count: None,
            account: Account {
                owner: "ada".to_owned(),
                course: "ml".to_owned(),
            },
            phase: Phase::Started,
            outcome: None,
            stopped: None,
            worker_name: None,
            priority: Priority::default(),
            timeout_ms: None,
            submitted_ms: 0,
            started_ms: None,
            finished_ms: None,
            run_ms: None,
            peak_memory_bytes: None,
        };
        assert_eq!(row.ran_ms(50), None);
        row.started_ms = Some(10);
        assert_eq!(row.ran_ms(50), Some(40));
        row.finished_ms = Some(45);
        assert_eq!(row.ran_ms(50), Some(35));
        row.run_ms = Some(5);
        assert_eq!(row.ran_ms(50), Some(5));
    }
}
