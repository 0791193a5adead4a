//! Queries of the broker's own loop and of its sweep.

use super::{
    Live, PublicFile, Store, StoreError, Writer,
    columns::{account, count, group, id, kind, number, outcome, small},
    row::Row,
    statement::sql,
    write,
};
use baton_broker_queue::{Account, Loaded, OpenJob, Phase, Remainder, Spent, of_cell};
use baton_protocol::{
    CellKey, JobEvent, JobId, NotebookId, NumberedEvent, Output, State, Submission, WorkerId,
    decode,
};
use baton_scheduling::queue::{MOST_RUNS, PastRun, Run};
use futures_util::TryStreamExt;
use std::collections::HashMap;

/// A page of events holds at most this many, and not much more than [`PAGE_BYTES`].
const PAGE_EVENTS: u32 = 256;
const PAGE_BYTES: usize = 1 << 20;

impl Store {
    /// Loads everything that a broker keeps in memory.
    pub async fn load(&self) -> Result<Loaded, StoreError> {
        // The writer is held, so nothing can be written between these queries.
        let mut writer = self.writer().await?;
        let open = sql(
            "SELECT job, sequence, notebook, notebook_name, owner, course, state, cancel_wanted, worker, worker_name, fencing,
             acknowledged, state_fencing, cell_key, priority, timeout_ms, submitted_ms, started_ms,
             execution_count, job_kind, stopped, held, front_ms, orphaned_ms, outcome,
             CASE WHEN state IN ('queued', 'assigned') THEN cell END AS waiting_cell,
             (SELECT COALESCE(MAX(number), 0) FROM events WHERE events.job = jobs.job) AS last_event,
             (SELECT kind FROM events WHERE events.job = jobs.job ORDER BY number DESC LIMIT 1) AS last_kind
             FROM jobs WHERE closed = 0 ORDER BY sequence",
        );
        let open = writer.fetch(open).await?;
        let closed = sql("SELECT job, notebook FROM jobs WHERE closed = 1");
        let closed = writer.fetch(closed).await?;
        let owners = sql("SELECT DISTINCT notebook, owner FROM jobs");
        let owners = writer.fetch(owners).await?;
        let last = sql("SELECT MAX(sequence) AS last FROM jobs");
        let last: Option<i64> = match writer.fetch(last).await?.first() {
            Some(row) => row.get("last")?,
            None => None,
        };
        Ok(Loaded {
            jobs: open.iter().map(open_job).collect::<Result<_, _>>()?,
            closed: closed
                .iter()
                .map(|row| Ok((JobId(id(row, "job")?), NotebookId(id(row, "notebook")?))))
                .collect::<Result<_, StoreError>>()?,
            owners: owners
                .iter()
                .map(|row| Ok((NotebookId(id(row, "notebook")?), row.get("owner")?)))
                .collect::<Result<_, StoreError>>()?,
            next_sequence: count(last.unwrap_or(0))? + 1,
            spent: spent(&mut writer).await?,
            runs: last_runs(&mut writer).await?,
            changes: super::actions::changes(&mut writer).await?,
        })
    }

    /// Returns `None` if the job is finished or unknown.
    pub async fn submission(&self, job: JobId) -> Result<Option<Submission>, StoreError> {
        let query = sql(
            "SELECT notebook, notebook_name, cell_key, priority, job_group, cell, manifest FROM jobs
             WHERE job = ? AND cell IS NOT NULL AND manifest IS NOT NULL",
        )
        .bind(job.0.as_bytes().as_slice());
        let Some(row) = self.fetch(query).await?.pop() else {
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

    /// The next events after this number, in order; empty if there are none.
    pub async fn events(&self, job: JobId, after: u64) -> Result<Vec<NumberedEvent>, StoreError> {
        let query = sql(
            "SELECT number, body FROM events WHERE job = ? AND number > ? ORDER BY number LIMIT ?",
        )
        .bind(job.0.as_bytes().as_slice())
        .bind(number(after))
        .bind(i64::from(PAGE_EVENTS));
        let mut rows = self.rows(query);
        let mut events = Vec::new();
        let (mut bytes, mut last) = (0, after);
        while bytes < PAGE_BYTES {
            let Some(row) = rows.try_next().await? else {
                break;
            };
            let body: Vec<u8> = row.get("body")?;
            bytes += body.len();
            let number = count(row.get("number")?)?;
            let missing = last + 1..number;
            let room = (PAGE_EVENTS as usize).saturating_sub(events.len());
            let fits = number - last - 1 <= room as u64;
            events.extend(missing.take(room).map(|missing| dropped(missing, number)));
            if !fits {
                break;
            }
            last = number;
            events.push(NumberedEvent {
                number,
                event: decode(&body)?,
            });
        }
        Ok(events)
    }

    /// The bytes of stored outputs of each open job that has any.
    pub async fn output_bytes(&self) -> Result<HashMap<JobId, u64>, StoreError> {
        let sums = sql(
            "SELECT jobs.job AS job, CAST(SUM(LENGTH(body)) AS BIGINT) AS bytes
             FROM jobs JOIN events ON events.job = jobs.job WHERE closed = 0 AND kind = 'output' GROUP BY jobs.job",
        );
        let rows = self.fetch(sums).await?;
        rows.iter()
            .map(|row| Ok((JobId(id(row, "job")?), count(row.get("bytes")?)?)))
            .collect()
    }

    /// The chunks that may still be requested: those of open jobs, of results that their notebooks
    /// do not have yet, and of public files.
    pub async fn live_chunks(&self) -> Result<Live, StoreError> {
        let mut live = Live::new();
        let states = sql(
            "SELECT owner, course, manifest FROM jobs WHERE closed = 0 AND manifest IS NOT NULL",
        );
        for row in self.fetch(states).await? {
            let state: State = decode(&row.get::<Vec<u8>>("manifest")?)?;
            live.entry(account(&row)?)
                .or_default()
                .extend(state.chunks());
        }
        let ends = sql(
            "SELECT owner, course, body FROM jobs JOIN events ON events.job = jobs.job
             WHERE closed = 0 AND kind IN (?, ?, ?, ?, ?)",
        )
        .bind(write::FINISHED)
        .bind(write::RETURNED)
        .bind(write::SALVAGEABLE)
        .bind(write::DEFERRED_STATE)
        .bind(write::SALVAGED);
        for row in self.fetch(ends).await? {
            let end: JobEvent = decode(&row.get::<Vec<u8>>("body")?)?;
            live.entry(account(&row)?).or_default().extend(end.chunks());
        }
        for file in self.all_public_files().await? {
            let holder = PublicFile::holder(&file.course);
            live.entry(holder).or_default().extend(file.chunks);
        }
        Ok(live)
    }

    /// Whether the database can be read.
    pub async fn answers(&self) -> Result<(), StoreError> {
        self.fetch(sql("SELECT 1 FROM jobs LIMIT 1")).await?;
        Ok(())
    }
}

/// Stands for an output that was deleted. The last one before the event `next` says so; the others
/// keep the numbers without gaps, as readers expect them.
fn dropped(number: u64, next: u64) -> NumberedEvent {
    let content: &[u8] = match number + 1 == next {
        true => {
            br#"{"name": "stderr", "text": "[baton] Older output of this cell is missing: it printed too much\n"}"#
        }
        false => br#"{"name": "stdout", "text": ""}"#,
    };
    NumberedEvent {
        number,
        event: JobEvent::Output(Output {
            kind: "stream".to_owned(),
            content: content.into(),
            metadata: b"{}".as_slice().into(),
            buffers: Vec::new(),
        }),
    }
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
        stopped: row.get("stopped")?,
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
            Some(write::RETURNED | write::DEFERRED_STATE) => Remainder::Deferred,
            Some(write::SALVAGEABLE) => Remainder::Session,
            _ => Remainder::Nothing,
        },
        orphaned_ms: row.get("orphaned_ms")?,
        outcome: outcome(row)?,
        state_fencing: count(row.get("state_fencing")?)?,
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

async fn spent(writer: &mut Writer) -> Result<Vec<(Account, Spent)>, StoreError> {
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

fn cell_key(row: &Row) -> Result<Option<CellKey>, StoreError> {
    let key: Option<Vec<u8>> = row.get("cell_key")?;
    let known = |key: Vec<u8>| key.try_into().map(CellKey);
    let damaged = |_| StoreError::Damaged {
        what: "a cell's key",
    };
    key.map(known).transpose().map_err(damaged)
}
