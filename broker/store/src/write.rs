//! Changes: a batch of [`Write`]s is one transaction.

use super::{
    Store, StoreError, actions,
    columns::number,
    environments, pools,
    statement::{Statement, sql},
};
use baton_broker_queue::{Account, Spent, Write};
use baton_protocol::{Finished, JobEvent, JobId, NumberedEvent, RemoteError, encode};

const DAY_MS: i64 = 24 * 3600 * 1000;
/// Rows in one `INSERT`, which has four values for each. Databases limit the values of a statement.
const INSERTED_EVENTS: usize = 256;
/// When a job is forgotten, outputs among its last `KEPT_EVENTS` events are kept, if they have at
/// most `KEPT_OUTPUT_BYTES` bytes.
const KEPT_EVENTS: i64 = 16;
const KEPT_OUTPUT_BYTES: i64 = 16 << 10;

impl Store {
    /// Applies all writes or none.
    pub async fn apply(&self, writes: &[Write]) -> Result<(), StoreError> {
        let mut statements = Vec::with_capacity(2 * writes.len());
        for write in writes {
            add_statements(write, &mut statements)?;
        }
        self.writer().await?.apply(statements).await
    }
}

fn add_statements(write: &Write, statements: &mut Vec<Statement>) -> Result<(), StoreError> {
    let statement = match write {
        Write::Submit {
            sequence,
            account,
            submission,
            at_ms,
        } => {
            sql(
                "INSERT INTO jobs (job, sequence, notebook, notebook_name, owner, course, state, cell, manifest,
                 cell_key, priority, timeout_ms, submitted_ms, execution_count, job_kind, job_group, sent_bytes)
                 VALUES (?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            .bind(*at_ms)
            .bind(submission.cell.execution_count)
            .bind(submission.cell.kind.name())
            .bind(submission.group.map(|group| group.0.as_bytes().to_vec()))
            .bind(number(submission.state.bytes())).changing(submission.job)
        }
        Write::Assign {
            job,
            worker,
            worker_name,
            fencing,
            timeout_ms,
            at_ms,
        } => {
            sql(
                "UPDATE jobs SET state = 'assigned', worker = ?, worker_name = ?, fencing = ?, timeout_ms = ?, assigned_ms = ?,
                 acknowledged = 0
                 WHERE job = ? AND state = 'queued' AND fencing < ?",
            )
            .bind(worker.0.as_bytes().as_slice())
            .bind(worker_name)
            .bind(number(*fencing))
            .bind(timeout_ms.map(number))
            .bind(*at_ms)
            .bind(job.0.as_bytes().as_slice())
            .bind(number(*fencing)).changing(*job)
        }
        Write::Requeue { job, fencing } => {
            sql(
                "UPDATE jobs SET state = 'queued', worker = NULL, worker_name = NULL, acknowledged = 0
                 WHERE job = ? AND state = 'assigned' AND fencing = ?",
            )
            .bind(job.0.as_bytes().as_slice())
            .bind(number(*fencing)).changing(*job)
        }
        Write::Start {
            job,
            fencing,
            at_ms,
        } => {
            sql(
                "UPDATE jobs SET state = 'started', started_ms = ? WHERE job = ? AND state = 'assigned' AND fencing = ?",
            )
            .bind(*at_ms)
            .bind(job.0.as_bytes().as_slice())
            .bind(number(*fencing)).changing(*job)
        }
        Write::Events {
            job,
            acknowledged,
            events,
        } => {
            for events in events.chunks(INSERTED_EVENTS) {
                statements.push(insert_events(*job, events));
            }
            let Some(acknowledged) = acknowledged else {
                return Ok(());
            };
            sql("UPDATE jobs SET acknowledged = ? WHERE job = ?")
                .bind(number(*acknowledged))
                .bind(job.0.as_bytes().as_slice())
                .changing(*job)
        }
        Write::DropOutputs { job, through } => {
            sql("DELETE FROM events WHERE job = ? AND kind = 'output' AND number <= ?")
                .bind(job.0.as_bytes().as_slice())
                .bind(number(*through))
        }
        Write::ReplaceState { job, state } => {
            sql(
                "UPDATE jobs SET manifest = ?, sent_bytes = ? WHERE job = ? AND state IN ('queued', 'assigned')",
            )
            .bind(encode(state))
            .bind(number(state.bytes()))
            .bind(job.0.as_bytes().as_slice()).changing(*job)
        }
        Write::WantCancel { job, stopped } => {
            sql("UPDATE jobs SET cancel_wanted = 1, stopped = ? WHERE job = ?")
                    .bind(stopped.clone())
                    .bind(job.0.as_bytes().as_slice()).changing(*job)
        }
        Write::Orphan { job, at_ms } => sql("UPDATE jobs SET orphaned_ms = ? WHERE job = ?")
            .bind(*at_ms)
            .bind(job.0.as_bytes().as_slice())
            .changing(*job),
        Write::Steer {
            job,
            held,
            front_ms,
        } => {
            sql(
                "UPDATE jobs SET held = ?, front_ms = ? WHERE job = ? AND state = 'queued'",
            )
            .bind(held.clone())
            .bind(*front_ms)
            .bind(job.0.as_bytes().as_slice()).changing(*job)
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
            sql(
                "UPDATE jobs SET state = 'finished', fencing = ?, outcome = ?, run_ms = ?, peak_memory_bytes = ?,
                 finished_ms = ?, error = ?, returned_bytes = ?, memory = ?, gpu = ?, cell = NULL, manifest = NULL WHERE job = ? AND state <> 'finished'",
            )
            .bind(number(*fencing))
            .bind(outcome.name())
            .bind(number(usage.run_ms))
            .bind(number(usage.peak_memory_bytes))
            .bind(*at_ms)
            .bind(error.as_ref().map(kept))
            .bind(returned_bytes.map(number))
            .bind((!memory.0.is_empty()).then(|| encode(&memory.0)))
            .bind(usage.gpu.as_ref().map(encode))
            .bind(job.0.as_bytes().as_slice()).changing(*job)
        }
        Write::Charge {
            account,
            spent,
            run_ms,
            at_ms,
        } => {
            statements.push(spend(account, spent));
            add_usage(account, *run_ms, *at_ms)
        }
        Write::GiveUp { job, outcome } => {
            // A cell that never started did not end well, whatever its notebook says.
            sql(
                "UPDATE jobs SET outcome = ? WHERE job = ? AND state = 'finished'
                 AND (started_ms IS NOT NULL OR ? <> 'ok')",
            )
            .bind(outcome.name())
            .bind(job.0.as_bytes().as_slice())
            .bind(outcome.name())
        }
        Write::Close { job } => {
            statements.push(forget_events(*job));
            sql("UPDATE jobs SET closed = 1 WHERE job = ? AND state = 'finished'")
                    .bind(job.0.as_bytes().as_slice()).changing(*job)
        }
        Write::Remove { job } => {
            let job_id = job.0.as_bytes().as_slice();
            statements.push(sql("DELETE FROM events WHERE job = ?").bind(job_id));
            sql("DELETE FROM jobs WHERE job = ? AND state = 'finished' AND started_ms IS NULL")
                .bind(job_id)
        }
        Write::SeeWorker {
            worker,
            name,
            devices,
            slots,
            at_ms,
        } => {
            statements.push(pools::connected(name, *at_ms));
            sql(
                "INSERT INTO workers (worker, name, devices, slots, seen_ms) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (worker) DO UPDATE SET name = excluded.name, devices = excluded.devices,
                 slots = excluded.slots, seen_ms = excluded.seen_ms, gone_ms = NULL",
            )
            .bind(worker.0.as_bytes().as_slice())
            .bind(name)
            .bind(encode(devices))
            .bind(i64::from(*slots))
            .bind(*at_ms)
        }
        Write::LoseWorker { worker, at_ms } => {
            sql("UPDATE workers SET gone_ms = ? WHERE worker = ?")
                .bind(*at_ms)
                .bind(worker.0.as_bytes().as_slice())
        }
        Write::ChangeWorker { name, paused } => {
            actions::change_worker(name, paused.clone())
        }
        Write::ChangeCourse { course, change } => {
            actions::change_course(course, change)?
        }
        Write::Allow { account, allowance, at_ms } => {
            statements.push(actions::forget_allowances(account, *at_ms));
            match allowance {
                Some(allowance) => actions::allow(account, allowance),
                None => return Ok(()),
            }
        }
        Write::KeepLock { environment, digest, lock, at_ms } => {
            environments::keep(environment, digest, lock, *at_ms)
        }
        Write::Audit(entry) => actions::record(entry),
    };
    statements.push(statement);
    Ok(())
}

fn insert_events(job: JobId, events: &[NumberedEvent]) -> Statement {
    let mut insert = sql("INSERT INTO events (job, number, kind, body) VALUES ");
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            insert.push(", ");
        }
        insert
            .push("(")
            .push_bind(job.0.as_bytes().as_slice())
            .push(", ")
            .push_bind(number(event.number))
            .push(", ")
            .push_bind(event_kind(&event.event))
            .push(", ")
            .push_bind(encode(&event.event))
            .push(")");
    }
    insert
}

/// The error as pages show it. A long error is cut to its name and message.
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

fn spend(account: &Account, spent: &Spent) -> Statement {
    sql(
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
}

/// Deletes all events except the last outputs, which the page of the job shows for a while.
fn forget_events(job: JobId) -> Statement {
    let job = job.0.as_bytes().as_slice();
    sql(
        "DELETE FROM events WHERE job = ? AND NOT (kind = 'output' AND LENGTH(body) <= ?
         AND number > (SELECT MAX(number) FROM events WHERE job = ?) - ?)",
    )
    .bind(job)
    .bind(KEPT_OUTPUT_BYTES)
    .bind(job)
    .bind(KEPT_EVENTS)
}

fn add_usage(account: &Account, run_ms: u64, at_ms: i64) -> Statement {
    sql(
        "INSERT INTO usage (day, owner, course, run_ms, runs) VALUES (?, ?, ?, ?, 1)
         ON CONFLICT (day, owner, course) DO UPDATE SET run_ms = usage.run_ms + excluded.run_ms,
         runs = usage.runs + 1",
    )
    .bind(at_ms.div_euclid(DAY_MS))
    .bind(&account.owner)
    .bind(&account.course)
    .bind(number(run_ms))
}

pub(super) const FINISHED: &str = "finished";
/// Finished; deferred state follows.
pub(super) const RETURNED: &str = "returned";
/// Finished; everything that the cell had can still be requested from its session.
pub(super) const SALVAGEABLE: &str = "salvageable";
/// The answer to a request to salvage.
pub(super) const SALVAGED: &str = "salvaged";
/// The deferred state arrived. It may have to be sent again.
pub(super) const DEFERRED_STATE: &str = "deferred_state";

fn event_kind(event: &JobEvent) -> &'static str {
    match event {
        JobEvent::Assigned { .. } => "assigned",
        JobEvent::StateWanted { .. } => "state_wanted",
        JobEvent::BytesWanted { .. } => "bytes_wanted",
        JobEvent::Started { .. } => "started",
        JobEvent::NotStarted { .. } => "not_started",
        JobEvent::Output(_) => "output",
        JobEvent::InputWanted { .. } => "input_wanted",
        JobEvent::Charged(_) => "charged",
        JobEvent::FilesWanted { .. } => "files_wanted",
        JobEvent::NamesWanted { .. } => "names_wanted",
        JobEvent::Finished(Finished {
            salvageable: true, ..
        }) => SALVAGEABLE,
        JobEvent::Finished(Finished {
            deferred_bytes: 0, ..
        }) => FINISHED,
        JobEvent::Finished(_) => RETURNED,
        JobEvent::DeferredState { state: Some(_), .. } => DEFERRED_STATE,
        JobEvent::DeferredState { state: None, .. } => "deferred_lost",
        JobEvent::Salvaged { .. } => SALVAGED,
    }
}
