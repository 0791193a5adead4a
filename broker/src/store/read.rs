//! What is asked of the store.

use super::{Loaded, OpenJob, Phase, Store, StoreError, write::number};
use crate::{
    history::{MOST_RUNS, Run},
    people::Account,
    usage::Spent,
};
use baton_protocol::{
    CellKey, JobId, NotebookId, NumberedEvent, State, Submission, WorkerId, decode,
};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

/// A page of events holds at most this many, and not much more than [`PAGE_BYTES`].
const PAGE_EVENTS: i64 = 256;
const PAGE_BYTES: usize = 1 << 20;

impl Store {
    /// Everything that a broker keeps in memory.
    pub(crate) async fn load(&self) -> Result<Loaded, StoreError> {
        // Read by the writer's connection: nothing can be written between the questions.
        let mut writer = self.writer.lock().await;
        let rows = sqlx::query(
            "SELECT job, sequence, notebook, notebook_name, owner, course, state, cancel_wanted, worker, worker_name, fencing,
             acknowledged, state_fencing, cell_key, priority, timeout_ms, submitted_ms, started_ms,
             execution_count, stopped, held, front_ms,
             (SELECT COALESCE(MAX(number), 0) FROM events WHERE events.job = jobs.job) AS last_event
             FROM jobs WHERE closed = 0 ORDER BY sequence",
        )
        .fetch_all(&mut *writer)
        .await?;
        let closed: Vec<Vec<u8>> = sqlx::query_scalar("SELECT job FROM jobs WHERE closed = 1")
            .fetch_all(&mut *writer)
            .await?;
        let last: i64 = sqlx::query_scalar("SELECT COALESCE(MAX(sequence), 0) FROM jobs")
            .fetch_one(&mut *writer)
            .await?;
        Ok(Loaded {
            jobs: rows.iter().map(open_job).collect::<Result<_, _>>()?,
            closed: closed
                .iter()
                .map(|job| uuid_of(job).map(JobId))
                .collect::<Result<_, _>>()?,
            next_sequence: count(last)? + 1,
            spent: spent(&mut writer).await?,
            runs: last_runs(&mut writer).await?,
            changes: super::actions::changes(&mut writer).await?,
        })
    }

    /// `None` when the job is finished or unknown.
    pub(crate) async fn submission(&self, job: JobId) -> Result<Option<Submission>, StoreError> {
        let row = sqlx::query(
            "SELECT notebook, notebook_name, cell_key, priority, cell, manifest FROM jobs
             WHERE job = ? AND cell IS NOT NULL AND manifest IS NOT NULL",
        )
        .bind(job.0.as_bytes().as_slice())
        .fetch_optional(&self.readers)
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Submission {
            job,
            notebook: NotebookId(id(&row, "notebook")?),
            notebook_name: row.try_get("notebook_name")?,
            cell_key: cell_key(&row)?,
            priority: decode(row.try_get("priority")?)?,
            cell: decode(row.try_get("cell")?)?,
            state: decode(row.try_get("manifest")?)?,
        }))
    }

    /// The next events after a number, in order; empty when there are none.
    pub(crate) async fn events(
        &self,
        job: JobId,
        after: u64,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        use futures_util::TryStreamExt;
        let mut rows = sqlx::query(
            "SELECT number, body FROM events WHERE job = ? AND number > ? ORDER BY number LIMIT ?",
        )
        .bind(job.0.as_bytes().as_slice())
        .bind(number(after))
        .bind(PAGE_EVENTS)
        .fetch(&self.readers);
        let mut events = Vec::new();
        let mut bytes = 0;
        while bytes < PAGE_BYTES {
            let Some(row) = rows.try_next().await? else {
                break;
            };
            let body: &[u8] = row.try_get("body")?;
            bytes += body.len();
            events.push(NumberedEvent {
                number: count(row.try_get("number")?)?,
                event: decode(body)?,
            });
        }
        Ok(events)
    }

    /// The states that somebody may still ask for: of jobs that have not finished, and results not yet home.
    pub(crate) async fn live_states(&self) -> Result<Vec<State>, StoreError> {
        let mut live = Vec::new();
        let states: Vec<Vec<u8>> =
            sqlx::query_scalar("SELECT manifest FROM jobs WHERE manifest IS NOT NULL")
                .fetch_all(&self.readers)
                .await?;
        for state in states {
            live.push(decode(&state)?);
        }
        let ends: Vec<Vec<u8>> = sqlx::query_scalar("SELECT body FROM events WHERE kind = ?")
            .bind(super::write::FINISHED)
            .fetch_all(&self.readers)
            .await?;
        for end in ends {
            if let baton_protocol::JobEvent::Finished {
                state: Some(state), ..
            } = decode(&end)?
            {
                live.push(state);
            }
        }
        Ok(live)
    }

    /// Whether the database can be read.
    pub(crate) async fn answers(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1 FROM jobs LIMIT 1")
            .fetch_optional(&self.readers)
            .await?;
        Ok(())
    }
}

fn open_job(row: &SqliteRow) -> Result<OpenJob, StoreError> {
    let state: &str = row.try_get("state")?;
    let worker: Option<&[u8]> = row.try_get("worker")?;
    Ok(OpenJob {
        job: JobId(id(row, "job")?),
        sequence: count(row.try_get("sequence")?)?,
        notebook: NotebookId(id(row, "notebook")?),
        notebook_name: row.try_get("notebook_name")?,
        execution_count: row.try_get("execution_count")?,
        account: account(row)?,
        phase: Phase::from_name(state).ok_or(StoreError::Damaged { what: "a state" })?,
        cancel_wanted: row.try_get("cancel_wanted")?,
        stopped: row.try_get("stopped")?,
        held: row.try_get("held")?,
        front_ms: row.try_get("front_ms")?,
        worker: match worker {
            Some(_) => Some(WorkerId(id(row, "worker")?)),
            None => None,
        },
        worker_name: row
            .try_get::<Option<String>, _>("worker_name")?
            .unwrap_or_default(),
        fencing: count(row.try_get("fencing")?)?,
        acknowledged: count(row.try_get("acknowledged")?)?,
        last_event: count(row.try_get("last_event")?)?,
        state_fencing: count(row.try_get("state_fencing")?)?,
        cell_key: cell_key(row)?,
        priority: decode(row.try_get("priority")?)?,
        timeout_ms: row
            .try_get::<Option<i64>, _>("timeout_ms")?
            .map(count)
            .transpose()?,
        submitted_ms: row.try_get("submitted_ms")?,
        started_ms: row.try_get("started_ms")?,
    })
}

async fn spent(reader: &mut SqliteConnection) -> Result<Vec<(Account, Spent)>, StoreError> {
    let rows =
        sqlx::query("SELECT owner, course, faded_ms, at_ms, period_start_ms, period_ms FROM spent")
            .fetch_all(reader)
            .await?;
    let spent = |row: &SqliteRow| {
        let spent = Spent {
            faded_ms: row.try_get("faded_ms")?,
            at_ms: row.try_get("at_ms")?,
            period_start_ms: row.try_get("period_start_ms")?,
            period_ms: count(row.try_get("period_ms")?)?,
        };
        Ok((account(row)?, spent))
    };
    rows.iter().map(spent).collect()
}

async fn last_runs(reader: &mut SqliteConnection) -> Result<Vec<Run>, StoreError> {
    let rows = sqlx::query(
        "SELECT cell_key, owner, course, run_ms FROM jobs
         WHERE state = 'finished' AND outcome IN ('ok', 'error', 'timed_out') ORDER BY finished_ms DESC LIMIT ?",
    )
    .bind(i64::try_from(MOST_RUNS).unwrap_or(i64::MAX))
    .fetch_all(reader)
    .await?;
    let run = |row: &SqliteRow| {
        Ok(Run {
            cell: cell_key(row)?,
            account: account(row)?,
            run_ms: count(row.try_get("run_ms")?)?,
        })
    };
    rows.iter().rev().map(run).collect()
}

fn cell_key(row: &SqliteRow) -> Result<Option<CellKey>, StoreError> {
    let key: Option<Vec<u8>> = row.try_get("cell_key")?;
    let known = |key: Vec<u8>| key.try_into().map(CellKey);
    let damaged = |_| StoreError::Damaged {
        what: "a cell's key",
    };
    key.map(known).transpose().map_err(damaged)
}

pub(super) fn account(row: &SqliteRow) -> Result<Account, StoreError> {
    Ok(Account {
        owner: row.try_get("owner")?,
        course: row.try_get("course")?,
    })
}

pub(super) fn id(row: &SqliteRow, column: &'static str) -> Result<Uuid, StoreError> {
    uuid_of(row.try_get(column)?)
}

fn uuid_of(bytes: &[u8]) -> Result<Uuid, StoreError> {
    Uuid::from_slice(bytes).map_err(|_| StoreError::Damaged {
        what: "an identifier",
    })
}

pub(super) fn count(value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| StoreError::Damaged {
        what: "a negative number",
    })
}
