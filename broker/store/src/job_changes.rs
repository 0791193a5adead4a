//! The changes of a job's row.
//!
//! **Invariant:** a change requires the state from which it leads to the next one. Otherwise it
//! changes no row, and fails with a conflict.

use super::{
    columns::number,
    statement::{Statement, sql},
};
use baton_broker_queue::{Account, MemoryCurve, StopReason};
use baton_protocol::{
    FencingNumber, JobId, Outcome, RemoteError, State, Submission, Usage, WorkerId, encode,
};

/// How a job ended.
pub(super) struct JobEnd<'a> {
    pub(super) outcome: Outcome,
    pub(super) usage: &'a Usage,
    pub(super) error: Option<&'a RemoteError>,
    pub(super) returned_bytes: Option<u64>,
    pub(super) memory: &'a MemoryCurve,
}

pub(super) fn submit(
    sequence: u64,
    account: &Account,
    submission: &Submission,
    at_ms: i64,
) -> Statement {
    sql(
        "INSERT INTO jobs (job, sequence, notebook, notebook_name, owner, course, state, cell, manifest,
         cell_key, priority, timeout_ms, submitted_ms, execution_count, job_kind, job_group, sent_bytes)
         VALUES (?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(submission.job.0)
    .bind(number(sequence))
    .bind(submission.notebook.0)
    .bind(&submission.notebook_name)
    .bind_account(account)
    .bind(encode(&submission.cell))
    .bind(encode(&submission.state))
    .bind(submission.cell_key.map(|key| key.0.to_vec()))
    .bind(encode(&submission.priority))
    .bind(submission.cell.timeout_ms.map(number))
    .bind(at_ms)
    .bind(submission.cell.execution_count)
    .bind(submission.cell.kind.name())
    .bind(submission.group.map(|group| group.0.as_bytes().to_vec()))
    .bind(number(submission.state.bytes()))
    .changing(submission.job)
}

pub(super) fn assign(
    job: JobId,
    (worker, worker_name): (WorkerId, &str),
    fencing: FencingNumber,
    timeout_ms: Option<u64>,
    at_ms: i64,
) -> Statement {
    sql(
        "UPDATE jobs SET state = 'assigned', worker = ?, worker_name = ?, fencing = ?, timeout_ms = ?,
         assigned_ms = ?, acknowledged = 0
         WHERE job = ? AND state = 'queued' AND fencing < ?",
    )
    .bind(worker.0)
    .bind(worker_name)
    .bind(number(fencing))
    .bind(timeout_ms.map(number))
    .bind(at_ms)
    .bind(job.0)
    .bind(number(fencing))
    .changing(job)
}

pub(super) fn requeue(job: JobId, fencing: FencingNumber) -> Statement {
    sql(
        "UPDATE jobs SET state = 'queued', worker = NULL, worker_name = NULL, acknowledged = 0
         WHERE job = ? AND state = 'assigned' AND fencing = ?",
    )
    .bind(job.0)
    .bind(number(fencing))
    .changing(job)
}

pub(super) fn start(job: JobId, fencing: FencingNumber, at_ms: i64) -> Statement {
    sql("UPDATE jobs SET state = 'started', started_ms = ?
         WHERE job = ? AND state = 'assigned' AND fencing = ?")
    .bind(at_ms)
    .bind(job.0)
    .bind(number(fencing))
    .changing(job)
}

pub(super) fn acknowledge(job: JobId, through: u64) -> Statement {
    sql("UPDATE jobs SET acknowledged = ? WHERE job = ?")
        .bind(number(through))
        .bind(job.0)
        .changing(job)
}

pub(super) fn replace_state(job: JobId, state: &State) -> Statement {
    sql("UPDATE jobs SET manifest = ?, sent_bytes = ?
         WHERE job = ? AND state IN ('queued', 'assigned')")
    .bind(encode(state))
    .bind(number(state.bytes()))
    .bind(job.0)
    .changing(job)
}

pub(super) fn want_cancel(job: JobId, stopped: Option<&StopReason>) -> Statement {
    let stopped = stopped.and_then(|reason| serde_json::to_string(reason).ok());
    sql("UPDATE jobs SET cancel_wanted = 1, stopped = ? WHERE job = ?")
        .bind(stopped)
        .bind(job.0)
        .changing(job)
}

pub(super) fn orphan(job: JobId, at_ms: Option<i64>) -> Statement {
    sql("UPDATE jobs SET orphaned_ms = ? WHERE job = ?")
        .bind(at_ms)
        .bind(job.0)
        .changing(job)
}

pub(super) fn steer(job: JobId, held: &Option<String>, front_ms: Option<i64>) -> Statement {
    sql("UPDATE jobs SET held = ?, front_ms = ? WHERE job = ? AND state = 'queued'")
        .bind(held.clone())
        .bind(front_ms)
        .bind(job.0)
        .changing(job)
}

pub(super) fn finish(
    job: JobId,
    fencing: FencingNumber,
    end: &JobEnd<'_>,
    at_ms: i64,
) -> Statement {
    sql(
        "UPDATE jobs SET state = 'finished', fencing = ?, outcome = ?, run_ms = ?, peak_memory_bytes = ?,
         finished_ms = ?, error = ?, returned_bytes = ?, memory = ?, gpu = ?, cell = NULL, manifest = NULL
         WHERE job = ? AND state <> 'finished'",
    )
    .bind(number(fencing))
    .bind(end.outcome.name())
    .bind(number(end.usage.run_ms))
    .bind(number(end.usage.peak_memory_bytes))
    .bind(at_ms)
    .bind(end.error.map(kept))
    .bind(end.returned_bytes.map(number))
    .bind((!end.memory.0.is_empty()).then(|| encode(&end.memory.0)))
    .bind(end.usage.gpu.as_ref().map(encode))
    .bind(job.0)
    .changing(job)
}

/// Does nothing if the row is already deleted.
pub(super) fn give_up(job: JobId, outcome: Outcome) -> Statement {
    // A cell that never started did not end well, whatever its notebook says.
    sql(
        "UPDATE jobs SET outcome = ? WHERE job = ? AND state = 'finished'
         AND (started_ms IS NOT NULL OR ? <> 'ok')",
    )
    .bind(outcome.name())
    .bind(job.0)
    .bind(outcome.name())
}

pub(super) fn close(job: JobId) -> Statement {
    sql("UPDATE jobs SET closed = 1 WHERE job = ? AND state = 'finished'")
        .bind(job.0)
        .changing(job)
}

/// Does nothing if the row is already deleted.
pub(super) fn remove(job: JobId) -> Statement {
    sql("DELETE FROM jobs WHERE job = ? AND state = 'finished' AND started_ms IS NULL").bind(job.0)
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
