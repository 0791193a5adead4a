//! What a restarted broker loads.

use super::{
    StoreError, Writer, accounts,
    columns::{account, cell_key, count, id, kind, outcome, small, stopped},
    environments, events,
    past::MINUTE_MS,
    row::Row,
    staff_changes,
    statement::{Statement, sql},
};
use baton_broker_queue::{Loaded, OpenJob, Phase, Remainder, of_cell};
use baton_protocol::{JobId, NotebookId, WorkerId, decode};
use baton_scheduling::queue::{MOST_RUNS, PastRun, Run};

/// Loads everything that a broker keeps in memory.
pub(super) async fn everything(writer: &mut Writer) -> Result<Loaded, StoreError> {
    let open = sql(
        "SELECT job, sequence, notebook, notebook_name, owner, course, state, cancel_wanted, worker, worker_name, fencing,
         acknowledged, cell_key, priority, timeout_ms, submitted_ms, started_ms,
         execution_count, job_kind, stopped, held, front_ms, orphaned_ms, outcome,
         CASE WHEN state IN ('queued', 'assigned') THEN cell END AS waiting_cell,
         (SELECT COALESCE(MAX(number), 0) FROM events WHERE events.job = jobs.job) AS last_event,
         (SELECT kind FROM events WHERE events.job = jobs.job ORDER BY number DESC LIMIT 1) AS last_kind
         FROM jobs WHERE closed = 0 ORDER BY sequence",
    );
    let jobs = writer.list(open, |row| open_job(&row)).await?;
    let closed = sql("SELECT job, notebook FROM jobs WHERE closed = 1");
    let closed_job = |row: Row| Ok((JobId(id(&row, "job")?), NotebookId(id(&row, "notebook")?)));
    let closed = writer.list(closed, closed_job).await?;
    let owners = sql("SELECT DISTINCT notebook, owner FROM jobs");
    let owner = |row: Row| Ok((NotebookId(id(&row, "notebook")?), row.get("owner")?));
    let owners = writer.list(owners, owner).await?;
    let last = sql("SELECT MAX(sequence) AS last FROM jobs");
    let last = largest(writer, last).await?;
    let minute = largest(writer, sql("SELECT MAX(minute) AS last FROM minutes")).await?;
    Ok(Loaded {
        jobs,
        closed: closed.into_iter().collect(),
        owners: owners.into_iter().collect(),
        next_sequence: count(last.unwrap_or(0))? + 1,
        last_alive_ms: minute.map(|minute| (minute + 1) * MINUTE_MS),
        spent: accounts::spent(writer).await?,
        runs: last_runs(writer).await?,
        changes: staff_changes::load(writer).await?,
        locks: environments::digests(writer).await?,
    })
}

/// The column `last` of the only row.
async fn largest(writer: &mut Writer, statement: Statement) -> Result<Option<i64>, StoreError> {
    let last = writer.list(statement, |row| row.get("last")).await?;
    Ok(last.into_iter().next().flatten())
}

fn open_job(row: &Row) -> Result<OpenJob, StoreError> {
    let state: String = row.get("state")?;
    let worker: Option<Vec<u8>> = row.get("worker")?;
    Ok(OpenJob {
        job: JobId(id(row, "job")?),
        sequence: count(row.get("sequence")?)?,
        notebook: NotebookId(id(row, "notebook")?),
        notebook_name: row.get("notebook_name")?,
        kind: kind(row)?,
        execution_count: small(row, "execution_count")?,
        account: account(row)?,
        phase: Phase::from_name(&state).ok_or(StoreError::Damaged { what: "a state" })?,
        cancel_wanted: row.get::<i64>("cancel_wanted")? != 0,
        stopped: stopped(row)?,
        held: row.get("held")?,
        front_ms: row.get("front_ms")?,
        worker: match worker {
            Some(_) => Some(WorkerId(id(row, "worker")?)),
            None => None,
        },
        worker_name: row
            .get::<Option<String>>("worker_name")?
            .unwrap_or_default(),
        fencing: count(row.get("fencing")?)?,
        acknowledged: count(row.get("acknowledged")?)?,
        last_event: count(row.get("last_event")?)?,
        remainder: match row.get::<Option<String>>("last_kind")?.as_deref() {
            Some(events::RETURNED) => Remainder::Deferred,
            Some(events::DEFERRED_STATE) => Remainder::Sent,
            Some(events::SALVAGEABLE) => Remainder::Session,
            _ => Remainder::Nothing,
        },
        orphaned_ms: row.get("orphaned_ms")?,
        outcome: outcome(row)?,
        cell_key: cell_key(row)?,
        priority: decode(&row.get::<Vec<u8>>("priority")?)?,
        needs: match row.get::<Option<Vec<u8>>>("waiting_cell")? {
            Some(cell) => of_cell(&decode(&cell)?),
            None => Vec::new(),
        },
        timeout_ms: row
            .get::<Option<i64>>("timeout_ms")?
            .map(count)
            .transpose()?,
        submitted_ms: row.get("submitted_ms")?,
        started_ms: row.get("started_ms")?,
    })
}

async fn last_runs(writer: &mut Writer) -> Result<Vec<PastRun>, StoreError> {
    let rows = sql(
        "SELECT cell_key, owner, course, run_ms, submitted_ms, finished_ms FROM jobs
         WHERE state = 'finished' AND outcome IN ('ok', 'error', 'timed_out') ORDER BY finished_ms DESC LIMIT ?",
    )
    .bind(i64::try_from(MOST_RUNS).unwrap_or(i64::MAX));
    let rows = writer.fetch(rows).await?;
    let run = |row: &Row| {
        let run = Run {
            cell: cell_key(row)?,
            account: account(row)?,
            run_ms: count(row.get("run_ms")?)?,
        };
        Ok(PastRun {
            run,
            submitted_ms: row.get("submitted_ms")?,
            finished_ms: row.get("finished_ms")?,
        })
    };
    rows.iter().rev().map(run).collect()
}
