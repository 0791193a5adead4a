//! What jobs have reported and printed, as numbered events.

use super::{
    Readers, Store, StoreError,
    columns::{count, id, number},
    row::Row,
    statement::{Statement, sql},
};
use baton_broker_queue::MOST_OPEN_QUESTIONS;
use baton_protocol::{Finished, JobEvent, JobId, NumberedEvent, Output, decode, encode};
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use std::collections::HashMap;

/// A page of events holds at most this many, and not much more than [`PAGE_BYTES`].
const PAGE_EVENTS: u32 = 256;
const PAGE_BYTES: usize = 1 << 20;
/// Rows in one `INSERT`, which has four values for each. Databases limit the values of a statement.
const INSERTED_EVENTS: usize = 256;
/// An output above this is not read for a page.
const MOST_OUTPUT_BYTES: i64 = 1 << 20;
/// When a job is forgotten, outputs among its last `KEPT_EVENTS` events are kept, if they have at
/// most `KEPT_OUTPUT_BYTES` bytes.
const KEPT_EVENTS: i64 = 16;
const KEPT_OUTPUT_BYTES: i64 = 16 << 10;

/// What counts towards the limit of a job's output: a cell can send any number of outputs and questions.
const LIMITED: [&str; 6] = [
    "output",
    "state_wanted",
    "bytes_wanted",
    "input_wanted",
    "files_wanted",
    "names_wanted",
];

pub(super) const FINISHED: &str = "finished";
/// Finished; deferred state follows.
pub(super) const RETURNED: &str = "returned";
/// Finished; everything that the cell had can still be requested from its session.
pub(super) const SALVAGEABLE: &str = "salvageable";
/// The answer to a request to salvage.
pub(super) const SALVAGED: &str = "salvaged";
/// The deferred state arrived. It may have to be sent again.
pub(super) const DEFERRED_STATE: &str = "deferred_state";

/// An output for the page of its job.
#[derive(Debug)]
pub struct LastOutput {
    pub bytes: u64,
    /// `None` if it is longer than a page reads.
    pub content: Option<Output>,
}

impl LastOutput {
    fn of(row: &Row) -> Result<Self, StoreError> {
        let body: Option<Vec<u8>> = row.get("body")?;
        let output = |event| match event {
            JobEvent::Output(output) => Ok(output),
            _ => Err(StoreError::Damaged { what: "an output" }),
        };
        let content = body.map(|body| output(decode(&body)?)).transpose()?;
        Ok(Self {
            bytes: count(row.get("bytes")?)?,
            content,
        })
    }
}

/// A handle of the store for events.
#[derive(Clone, Copy)]
pub struct Events<'store>(pub(super) &'store Store);

impl<'store> Events<'store> {
    /// The next events after this number, in order; empty if there are none.
    pub async fn after(self, job: JobId, after: u64) -> Result<Vec<NumberedEvent>, StoreError> {
        let query = sql(
            "SELECT number, body FROM events WHERE job = ? AND number > ? ORDER BY number LIMIT ?",
        )
        .bind(job.0)
        .bind(number(after))
        .bind(PAGE_EVENTS);
        let mut rows = self.0.rows(Readers::Cells, query);
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

    /// The bytes of stored outputs and questions of each open job that has any.
    pub async fn output_bytes(self) -> Result<HashMap<JobId, u64>, StoreError> {
        let sums = sql(format!(
            "SELECT jobs.job AS job, CAST(SUM(LENGTH(body)) AS BIGINT) AS bytes
             FROM jobs JOIN events ON events.job = jobs.job WHERE closed = 0 AND {} GROUP BY jobs.job",
            is_limited_row()
        ));
        let sum = |row: &Row| Ok((JobId(id(row, "job")?), count(row.get("bytes")?)?));
        self.0.list(sums, sum).await
    }

    /// The last stored outputs of a job, beginning with the last one. Each is read when it is asked for.
    pub fn last_outputs(
        self,
        job: JobId,
        most: u32,
    ) -> BoxStream<'store, Result<LastOutput, StoreError>> {
        let query = sql(
            "SELECT CAST(LENGTH(body) AS BIGINT) AS bytes, CASE WHEN LENGTH(body) <= ? THEN body END AS body
             FROM events WHERE job = ? AND kind = 'output' ORDER BY number DESC LIMIT ?",
        )
        .bind(MOST_OUTPUT_BYTES)
        .bind(job.0)
        .bind(most);
        let rows = self.0.rows(Readers::Pages, query);
        rows.map(|row| LastOutput::of(&row?)).boxed()
    }
}

/// Whether the event counts towards the limit of its job's output.
#[must_use]
pub fn is_limited(event: &JobEvent) -> bool {
    LIMITED.contains(&event_kind(event))
}

/// The same as a condition on a row.
fn is_limited_row() -> String {
    format!("kind IN ('{}')", LIMITED.join("', '"))
}

/// Stands for an output or a question that was deleted. The last one before the event `next` says so; the others
/// keep the numbers without gaps, as readers expect them.
fn dropped(number: u64, next: u64) -> NumberedEvent {
    let content: &[u8] = match number + 1 == next {
        true => {
            br#"{"name": "stderr", "text": "[baton] Older output is missing: too much was printed\n"}"#
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

pub(super) fn insert(job: JobId, events: &[NumberedEvent]) -> impl Iterator<Item = Statement> {
    let rows = events.chunks(INSERTED_EVENTS);
    rows.map(move |rows| insert_at_once(job, rows))
}

fn insert_at_once(job: JobId, events: &[NumberedEvent]) -> Statement {
    let mut insert = sql("INSERT INTO events (job, number, kind, body) VALUES ");
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            insert.push(", ");
        }
        insert
            .push("(")
            .push_bind(job.0)
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

/// Questions stay that may be open, because a notebook that has not read them may still have to answer them: the last
/// one of each kind, and as many about files as can be open at once.
pub(super) fn drop_outputs(job: JobId, through: u64) -> Statement {
    let is_limited = is_limited_row();
    sql(format!(
        "DELETE FROM events WHERE job = ? AND number <= ? AND {is_limited} AND number NOT IN
         (SELECT MAX(number) FROM events WHERE job = ? AND {is_limited} AND kind <> 'output' GROUP BY kind)
         AND number NOT IN
         (SELECT number FROM events WHERE job = ? AND kind = 'files_wanted' ORDER BY number DESC LIMIT {MOST_OPEN_QUESTIONS})"
    ))
    .bind(job.0)
    .bind(number(through))
    .bind(job.0)
    .bind(job.0)
}

pub(super) fn delete(job: JobId) -> Statement {
    sql("DELETE FROM events WHERE job = ?").bind(job.0)
}

/// Deletes all events except the last outputs, which the page of the job shows for a while.
pub(super) fn forget(job: JobId) -> Statement {
    sql(
        "DELETE FROM events WHERE job = ? AND NOT (kind = 'output' AND LENGTH(body) <= ?
         AND number > (SELECT MAX(number) FROM events WHERE job = ?) - ?)",
    )
    .bind(job.0)
    .bind(KEPT_OUTPUT_BYTES)
    .bind(job.0)
    .bind(KEPT_EVENTS)
}

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
