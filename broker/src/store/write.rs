//! Changes: a batch of [`Write`]s is one transaction.

use super::{Store, StoreError, Write, actions};
use crate::{people::Account, usage::Spent};
use baton_protocol::{JobEvent, JobId, RemoteError, encode};
use sqlx::{Connection, Sqlite, SqliteConnection, query::Query, sqlite::SqliteArguments};

const DAY_MS: i64 = 24 * 3600 * 1000;

impl Store {
    /// All of it or nothing.
    pub(crate) async fn apply(&self, writes: &[Write]) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
        for write in writes {
            apply_one(&mut transaction, write).await?;
        }
        transaction.commit().await?;
        self.growth.add();
        Ok(())
    }
}

async fn apply_one(connection: &mut SqliteConnection, write: &Write) -> Result<(), StoreError> {
    match write {
        Write::Submit {
            sequence,
            account,
            submission,
            at_ms,
        } => {
            let insert = sqlx::query(
                "INSERT INTO jobs (job, sequence, notebook, notebook_name, owner, course, state, cell, manifest,
                 cell_key, priority, timeout_ms, submitted_ms, execution_count, sent_bytes)
                 VALUES (?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(submission.job.0.as_bytes().as_slice())
            .bind(number(*sequence))
            .bind(submission.notebook.0.as_bytes().as_slice())
            .bind(&submission.notebook_name)
            .bind(&account.owner)
            .bind(&account.course)
            .bind(encode(&submission.cell))
            .bind(encode(&submission.state))
            .bind(submission.cell_key.map(|key| key.0.to_vec()))
            .bind(encode(&submission.priority))
            .bind(submission.cell.timeout_ms.map(number))
            .bind(at_ms)
            .bind(submission.cell.execution_count)
            .bind(number(submission.state.bytes()));
            change(connection, submission.job, insert).await
        }
        Write::Assign {
            job,
            worker,
            worker_name,
            fencing,
            timeout_ms,
            at_ms,
        } => {
            let update = sqlx::query(
                "UPDATE jobs SET state = 'assigned', worker = ?, worker_name = ?, fencing = ?, timeout_ms = ?, assigned_ms = ?,
                 acknowledged = 0
                 WHERE job = ? AND state = 'queued' AND fencing < ?",
            )
            .bind(worker.0.as_bytes().as_slice())
            .bind(worker_name)
            .bind(number(*fencing))
            .bind(timeout_ms.map(number))
            .bind(at_ms)
            .bind(job.0.as_bytes().as_slice())
            .bind(number(*fencing));
            change(connection, *job, update).await
        }
        Write::Requeue { job, fencing } => {
            let update = sqlx::query(
                "UPDATE jobs SET state = 'queued', worker = NULL, worker_name = NULL, acknowledged = 0
                 WHERE job = ? AND state = 'assigned' AND fencing = ?",
            )
            .bind(job.0.as_bytes().as_slice())
            .bind(number(*fencing));
            change(connection, *job, update).await
        }
        Write::Start {
            job,
            fencing,
            at_ms,
        } => {
            let update = sqlx::query(
                "UPDATE jobs SET state = 'started', started_ms = ? WHERE job = ? AND state = 'assigned' AND fencing = ?",
            )
            .bind(at_ms)
            .bind(job.0.as_bytes().as_slice())
            .bind(number(*fencing));
            change(connection, *job, update).await
        }
        Write::Events {
            job,
            acknowledged,
            events,
        } => {
            for event in events {
                sqlx::query("INSERT INTO events (job, number, kind, body) VALUES (?, ?, ?, ?)")
                    .bind(job.0.as_bytes().as_slice())
                    .bind(number(event.number))
                    .bind(event_kind(&event.event))
                    .bind(encode(&event.event))
                    .execute(&mut *connection)
                    .await?;
            }
            let Some(acknowledged) = acknowledged else {
                return Ok(());
            };
            let update = sqlx::query("UPDATE jobs SET acknowledged = ? WHERE job = ?")
                .bind(number(*acknowledged))
                .bind(job.0.as_bytes().as_slice());
            change(connection, *job, update).await
        }
        Write::ReplaceState {
            job,
            fencing,
            state,
        } => {
            let update = sqlx::query(
                "UPDATE jobs SET manifest = ?, state_fencing = ?, sent_bytes = ? WHERE job = ? AND state IN ('queued', 'assigned')",
            )
            .bind(encode(state))
            .bind(number(*fencing))
            .bind(number(state.bytes()))
            .bind(job.0.as_bytes().as_slice());
            change(connection, *job, update).await
        }
        Write::WantCancel { job, stopped } => {
            let update =
                sqlx::query("UPDATE jobs SET cancel_wanted = 1, stopped = ? WHERE job = ?")
                    .bind(stopped)
                    .bind(job.0.as_bytes().as_slice());
            change(connection, *job, update).await
        }
        Write::Steer {
            job,
            held,
            front_ms,
        } => {
            let update = sqlx::query(
                "UPDATE jobs SET held = ?, front_ms = ? WHERE job = ? AND state = 'queued'",
            )
            .bind(held)
            .bind(front_ms)
            .bind(job.0.as_bytes().as_slice());
            change(connection, *job, update).await
        }
        Write::Finish {
            job,
            fencing,
            outcome,
            usage,
            error,
            returned_bytes,
            memory,
            at_ms,
        } => {
            let update = sqlx::query(
                "UPDATE jobs SET state = 'finished', fencing = ?, outcome = ?, run_ms = ?, peak_memory_bytes = ?,
                 finished_ms = ?, error = ?, returned_bytes = ?, memory = ?, cell = NULL, manifest = NULL WHERE job = ? AND state <> 'finished'",
            )
            .bind(number(*fencing))
            .bind(outcome.name())
            .bind(number(usage.run_ms))
            .bind(number(usage.peak_memory_bytes))
            .bind(at_ms)
            .bind(error.as_ref().map(kept))
            .bind(returned_bytes.map(number))
            .bind((!memory.0.is_empty()).then(|| encode(&memory.0)))
            .bind(job.0.as_bytes().as_slice());
            change(connection, *job, update).await
        }
        Write::Charge {
            account,
            spent,
            run_ms,
            at_ms,
        } => charge(connection, account, spent, *run_ms, *at_ms).await,
        Write::Close { job } => {
            sqlx::query("DELETE FROM events WHERE job = ?")
                .bind(job.0.as_bytes().as_slice())
                .execute(&mut *connection)
                .await?;
            let update =
                sqlx::query("UPDATE jobs SET closed = 1 WHERE job = ? AND state = 'finished'")
                    .bind(job.0.as_bytes().as_slice());
            change(connection, *job, update).await
        }
        Write::SeeWorker {
            worker,
            name,
            devices,
            slots,
            at_ms,
        } => {
            sqlx::query(
                "INSERT INTO workers (worker, name, devices, slots, seen_ms) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (worker) DO UPDATE SET name = excluded.name, devices = excluded.devices,
                 slots = excluded.slots, seen_ms = excluded.seen_ms, gone_ms = NULL",
            )
            .bind(worker.0.as_bytes().as_slice())
            .bind(name)
            .bind(encode(devices))
            .bind(i64::from(*slots))
            .bind(at_ms)
            .execute(&mut *connection)
            .await?;
            Ok(())
        }
        Write::LoseWorker { worker, at_ms } => {
            sqlx::query("UPDATE workers SET gone_ms = ? WHERE worker = ?")
                .bind(at_ms)
                .bind(worker.0.as_bytes().as_slice())
                .execute(&mut *connection)
                .await?;
            Ok(())
        }
        Write::ChangeWorker { name, paused } => {
            actions::change_worker(connection, name, paused.as_deref()).await
        }
        Write::ChangeCourse { course, change } => {
            actions::change_course(connection, course, change).await
        }
        Write::Audit(entry) => actions::record(connection, entry).await,
    }
}

/// The error for the pages. A long one keeps its name and its words.
fn kept(error: &RemoteError) -> Vec<u8> {
    const LONGEST_ERROR: usize = 64 << 10;
    const LONGEST_WORDS: usize = 2000;
    let whole = encode(error);
    if whole.len() <= LONGEST_ERROR {
        return whole;
    }
    encode(&RemoteError {
        name: error.name.chars().take(LONGEST_WORDS).collect(),
        value: error.value.chars().take(LONGEST_WORDS).collect(),
        traceback: Vec::new(),
        hint: None,
    })
}

async fn charge(
    connection: &mut SqliteConnection,
    account: &Account,
    spent: &Spent,
    run_ms: u64,
    at_ms: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO spent (owner, course, faded_ms, at_ms, period_start_ms, period_ms) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (owner, course) DO UPDATE SET faded_ms = excluded.faded_ms, at_ms = excluded.at_ms,
         period_start_ms = excluded.period_start_ms, period_ms = excluded.period_ms",
    )
    .bind(&account.owner)
    .bind(&account.course)
    .bind(spent.faded_ms)
    .bind(spent.at_ms)
    .bind(spent.period_start_ms)
    .bind(number(spent.period_ms))
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO usage (day, owner, course, run_ms, runs) VALUES (?, ?, ?, ?, 1)
         ON CONFLICT (day, owner, course) DO UPDATE SET run_ms = run_ms + excluded.run_ms, runs = runs + 1",
    )
    .bind(at_ms.div_euclid(DAY_MS))
    .bind(&account.owner)
    .bind(&account.course)
    .bind(number(run_ms))
    .execute(&mut *connection)
    .await?;
    Ok(())
}

async fn change(
    connection: &mut SqliteConnection,
    job: JobId,
    query: Query<'_, Sqlite, SqliteArguments>,
) -> Result<(), StoreError> {
    let changed = query.execute(connection).await?.rows_affected();
    if changed == 1 {
        Ok(())
    } else {
        Err(StoreError::Conflict { job })
    }
}

/// SQLite's integers are signed. Counts stay far below 2^63; a measured number that does not is cut.
pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) const FINISHED: &str = "finished";

fn event_kind(event: &JobEvent) -> &'static str {
    match event {
        JobEvent::Assigned { .. } => "assigned",
        JobEvent::StateWanted {} => "state_wanted",
        JobEvent::BytesWanted {} => "bytes_wanted",
        JobEvent::Started { .. } => "started",
        JobEvent::Output(_) => "output",
        JobEvent::InputWanted { .. } => "input_wanted",
        JobEvent::Charged(_) => "charged",
        JobEvent::FilesWanted { .. } => "files_wanted",
        JobEvent::NamesWanted { .. } => "names_wanted",
        JobEvent::Finished { .. } => FINISHED,
    }
}
