//! One job on this worker, from its assignment to its last event.
//!
//! ```text
//! preparing ──> applying ──> running ──> collecting ──> finished
//!  (prepare)   └──────────────── (cell) ─────────────┘
//! ```
//!
//! In: an order and the notebook's session, if there is one. Out: events, and the session where it is as good as
//! before. After anything but a cell that ended by itself, whose state came home whole, the session is ended: the
//! notebook has given up the object table that it shared with it.

mod cell;
mod deferred;
mod deferred_state;
mod plan;
mod prepare;
mod salvage;

use std::sync::Arc;

use baton_protocol::shim::ToSession;
use baton_protocol::{
    ChunkHash, JobEvent, Outcome, Payload, RemoteError, State, Submission, Usage,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::gpu::{Cell, Membership};
use crate::messages;
use crate::mirror::Questions;
use crate::report::EventSink;
use crate::session::Session;

pub(crate) use self::deferred::Deferred;
use self::deferred_state::DeferredState;
pub(crate) use self::salvage::Salvage;

/// A job and the ends of everything that its task hears.
pub(crate) struct Order {
    /// Whose turns the session takes on a GPU.
    pub(crate) account: u64,
    /// In which of the worker's environments it runs.
    pub(crate) environment: Option<String>,
    pub(crate) submission: Submission,
    pub(crate) events: EventSink,
    /// Changes once: the broker has stored [`JobEvent::Started`], so the cell may start.
    pub(crate) permission: watch::Receiver<()>,
    /// Answers to [`JobEvent::StateWanted`] and [`JobEvent::BytesWanted`].
    pub(crate) states: mpsc::Receiver<State>,
    /// Answers to [`JobEvent::InputWanted`], with the number of the question.
    pub(crate) inputs: mpsc::Receiver<(u64, Option<String>)>,
    /// About files; a session with a mirror takes it.
    pub(crate) questions: Option<Questions>,
    /// The last answer to [`JobEvent::NamesWanted`].
    pub(crate) names: watch::Receiver<Option<Names>>,
    /// The student interrupted the cell.
    pub(crate) cancelled: CancellationToken,
    /// The assignment is no longer this worker's.
    pub(crate) revoked: CancellationToken,
    /// The notebook lacks what the cell left in its session.
    pub(crate) deferred_wanted: Arc<Notify>,
    /// The notebook kernel has ended; the cell goes on.
    pub(crate) orphaned: CancellationToken,
    /// What the student is to read above the cell's output.
    pub(crate) warnings: Vec<String>,
    pub(crate) last_word: LastWord,
}

/// What the session lacks to have the names that its question with this number asked for.
#[derive(Clone)]
pub(crate) struct Names {
    pub(crate) number: u64,
    pub(crate) state: State,
}

/// Sees to it that a job has an end, even if its task has none.
pub(crate) struct LastWord {
    events: EventSink,
    revoked: CancellationToken,
    said: bool,
}

impl LastWord {
    pub(crate) fn new(events: EventSink, revoked: CancellationToken) -> Self {
        Self {
            events,
            revoked,
            said: false,
        }
    }

    fn say(&mut self, ending: Ending) {
        self.said = true;
        self.events.send(ending.into());
    }
}

impl Drop for LastWord {
    fn drop(&mut self) {
        if !self.said && !self.revoked.is_cancelled() {
            let error = messages::session_failed("The worker failed while it ran the cell");
            self.say(Ending::without_state(Outcome::WorkerLost, error));
        }
    }
}

/// How a job ended.
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    pub(crate) error: Option<RemoteError>,
    pub(crate) state: Option<State>,
    pub(crate) files: Option<Payload>,
    pub(crate) usage: Usage,
    /// What the state leaves out; the session has it.
    pub(crate) deferred_bytes: u64,
    pub(crate) deferred: Option<DeferredState>,
    /// Its session can be asked for what the cell had, if the notebook kernel ends.
    pub(crate) salvageable: bool,
    pub(crate) file_chunks: Vec<ChunkHash>,
    /// It ended before the cell, for a reason of this worker that others need not have.
    elsewhere: bool,
}

impl Ending {
    /// No session starts here, whoever's it is.
    pub(crate) fn not_started(error: RemoteError) -> Self {
        Self {
            elsewhere: true,
            ..Self::without_state(Outcome::Refused, error)
        }
    }

    /// Nothing comes home.
    pub(crate) fn without_state(outcome: Outcome, error: RemoteError) -> Self {
        Self {
            outcome,
            error: Some(error),
            state: None,
            files: None,
            usage: Usage::default(),
            deferred_bytes: 0,
            deferred: None,
            salvageable: false,
            file_chunks: Vec::new(),
            elsewhere: false,
        }
    }
}

/// Runs the job and says how it ended. Returns the session where it may be used again, or is the only one that has
/// what the notebook lacks.
pub(crate) async fn run_job(
    context: &Arc<Context>,
    mut session: Option<Session>,
    deferred: &mut Deferred,
    salvage: &mut Option<Salvage>,
    mut order: Order,
) -> Option<Session> {
    if let Some(code) = gpu_fault(session.as_ref(), deferred).await {
        order.warnings.push(messages::gpu_failed_before(code));
        session = None;
    }
    let revoked = order.revoked.clone();
    let (mut ending, mut used) = tokio::select! {
        end = prepare_and_run(context, &mut session, deferred, &mut order) => end,
        () = revoked.cancelled() => return kept(session, deferred),
    };
    let state_was_read = ending.state.is_some();
    if state_was_read {
        deferred.add(ending.deferred.take());
    }
    let file_chunks = std::mem::take(&mut ending.file_chunks);
    *salvage = ending.salvageable.then(|| Salvage::of(&order, file_chunks));
    order.last_word.say(ending);
    // Last, because the student waits for the end, and what the session does now takes a processor.
    if state_was_read {
        if let Some(used) = &mut used {
            let message_id = order.submission.cell.message_id.clone();
            used.answer(ToSession::Released { message_id }).await;
        }
        return used;
    }
    kept(used.or(session), deferred)
}

/// A session that is of no use to a later cell, where nothing else has what the notebook still lacks.
fn kept(session: Option<Session>, deferred: &Deferred) -> Option<Session> {
    let session = session.filter(|_| deferred.needs_session())?;
    if let Some(gpu) = session.gpu() {
        gpu.cell(Cell::Ended);
    }
    Some(session)
}

/// After its last cell the session lost the use of the GPU, and the notebook needs nothing of it.
fn gpu_fault(
    session: Option<&Session>,
    deferred: &Deferred,
) -> impl Future<Output = Option<u32>> + use<> {
    let session = session.filter(|_| !deferred.needs_session());
    let fault = session.and_then(Session::gpu).map(Membership::fault);
    async move { fault?.await }
}

/// As long as the cell has not been told to it, the session stays where it was.
async fn prepare_and_run(
    context: &Arc<Context>,
    session: &mut Option<Session>,
    deferred: &mut Deferred,
    order: &mut Order,
) -> (Ending, Option<Session>) {
    let cancelled = order.cancelled.clone();
    let prepared = tokio::select! {
        prepared = wake_and_prepare(context, session, deferred, order) => prepared,
        () = cancelled.cancelled() => Err(Ending::without_state(Outcome::Cancelled, messages::cancelled())),
    };
    match prepared {
        Ok(ready) => {
            // Without a keeper it has gone home, and cannot be read again.
            deferred.lose_session();
            cell::run_cell(context, ready, order).await
        }
        Err(ending) => (ending, None),
    }
}

/// One that left the GPU comes back to it first.
async fn wake_and_prepare<'context>(
    context: &'context Arc<Context>,
    session: &mut Option<Session>,
    deferred: &mut Deferred,
    order: &mut Order,
) -> Result<prepare::Ready<'context>, Ending> {
    if let Some(asleep) = session
        && let Err(error) = asleep.wake().await
    {
        tracing::warn!("A session could not return to the GPU: {error}");
        order.warnings.push(messages::gpu_not_back());
        *session = None;
    }
    prepare::prepare(context, session, deferred, order).await
}

impl From<Ending> for JobEvent {
    fn from(ending: Ending) -> Self {
        if let (true, Some(error)) = (ending.elsewhere, &ending.error) {
            let error = error.clone();
            return Self::NotStarted { error };
        }
        Self::Finished {
            outcome: ending.outcome,
            error: ending.error,
            state: ending.state,
            usage: ending.usage,
            files: ending.files,
            deferred_bytes: ending.deferred_bytes,
            salvageable: ending.salvageable,
        }
    }
}
