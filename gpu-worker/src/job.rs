//! One job on this worker, from its assignment to its last event.
//!
//! ```text
//! preparing ──> applying ──> running ──> collecting ──> finished
//!  (prepare)   └──────────────── (cell) ─────────────┘
//! ```
//!
//! In: a job and the notebook's session, if there is one. Out: events, and the session if it can be used again.
//! It can be used again only if its whole state was sent, also after an interrupt. In all other cases the session is
//! ended, because the notebook has given up the object table that both shared.

mod cell;
mod deferred;
mod deferred_state;
mod plan;
mod prepare;
mod salvage;

use self::deferred_state::DeferredState;
use crate::{
    context::Context,
    gpu::{Cell, Membership},
    messages,
    questions::{Questions, Waits},
    report::{EventSink, PromisedEvent},
    sandbox::Share,
    session::Session,
};
use baton_protocol::{
    ChunkHash, Finished, JobEvent, JobKind, Outcome, RemoteError, Submission, shim::ToSession,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use self::deferred::Deferred;
pub(crate) use self::salvage::Salvage;

/// A job, and the receiving ends of everything that its task waits for.
pub(crate) struct Job {
    /// The account that the session's GPU time is charged to.
    pub(crate) account: u64,
    /// The environment in which it runs; `None` is the worker's own Python.
    pub(crate) environment: Option<String>,
    pub(crate) submission: Submission,
    pub(crate) events: EventSink,
    /// Changes once: the broker has stored [`JobEvent::Started`], so the cell may start.
    pub(crate) permission: watch::Receiver<()>,
    pub(crate) questions: Questions,
    /// The student interrupted the cell.
    pub(crate) cancelled: CancellationToken,
    /// This worker no longer holds the assignment.
    pub(crate) revoked: CancellationToken,
    /// The notebook asks for the cell's deferred state.
    pub(crate) deferred_wanted: Arc<Notify>,
    /// Whether the notebook kernel has ended; the cell continues.
    pub(crate) orphaned: watch::Receiver<bool>,
    /// Warnings that the student reads above the cell's output.
    pub(crate) warnings: Vec<String>,
    pub(crate) end_guard: EndGuard,
}

/// Ensures that a job reports an end, even if its task panics or is dropped.
pub(crate) struct EndGuard {
    end: PromisedEvent,
    questions: Questions,
}

impl EndGuard {
    pub(crate) fn new(
        kind: JobKind,
        events: EventSink,
        questions: Questions,
        revoked: CancellationToken,
    ) -> Self {
        let failed = Ending::without_state(Outcome::WorkerLost, messages::worker_failed(kind));
        Self {
            end: PromisedEvent::new(events, revoked, failed.into()),
            questions,
        }
    }

    fn report(&mut self, ending: Ending) {
        self.questions.has_notebook(false);
        self.end.send(ending.into());
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.questions.has_notebook(false);
    }
}

/// How a job ended.
pub(crate) struct Ending {
    pub(crate) finished: Finished,
    pub(crate) deferred: Option<DeferredState>,
    pub(crate) file_chunks: Vec<ChunkHash>,
    /// The job ended before its cell started, for a reason that need not apply to other workers.
    elsewhere: bool,
}

impl Ending {
    /// Sessions do not start here, for any notebook. The error's text is shown as the reason, to students of other jobs
    /// and to staff.
    pub(crate) fn not_started(error: RemoteError) -> Self {
        Self {
            elsewhere: true,
            ..Self::without_state(Outcome::Refused, error)
        }
    }

    /// No state is returned to the notebook.
    pub(crate) fn without_state(outcome: Outcome, error: RemoteError) -> Self {
        Self {
            finished: Finished::without_state(outcome, Some(error)),
            deferred: None,
            file_chunks: Vec::new(),
            elsewhere: false,
        }
    }
}

/// A job that is over, and its session.
pub(crate) struct Ended {
    pub(crate) ending: Ending,
    /// `None` if no cell was sent to it, or it can no longer be used.
    pub(crate) session: Option<Session>,
}

impl Ended {
    pub(crate) fn without_session(ending: Ending) -> Self {
        Self {
            ending,
            session: None,
        }
    }
}

/// Runs the job and reports how it ended. Returns the session if it can be used again, or if only it has what the
/// notebook lacks.
pub(crate) async fn run_job(
    context: &Arc<Context>,
    mut session: Option<Session>,
    deferred: &mut Deferred,
    salvage: &mut Option<Salvage>,
    mut job: Job,
) -> Option<Session> {
    if let Some(code) = gpu_fault(session.as_ref(), deferred).await {
        let kind = job.submission.cell.kind;
        job.warnings.push(messages::gpu_failed_before(kind, code));
        session = None;
    }
    let revoked = job.revoked.clone();
    let Ended {
        mut ending,
        session: mut used,
    } = tokio::select! {
        end = prepare_and_run(context, &mut session, deferred, &mut job) => end,
        () = revoked.cancelled() => return kept(session, deferred),
    };
    let state_was_read = ending.finished.state.is_some();
    if state_was_read {
        deferred.add(ending.deferred.take());
    }
    let file_chunks = std::mem::take(&mut ending.file_chunks);
    *salvage = ending
        .finished
        .salvageable
        .then(|| Salvage::of(&job, file_chunks));
    job.end_guard.report(ending);
    // Only now, because the student waits for the end, and what the session does next needs a processor.
    if state_was_read {
        if let Some(used) = &mut used {
            let message_id = job.submission.cell.message_id.clone();
            used.answer(ToSession::Released { message_id }).await;
            used.set_share(Share::BetweenCells);
        }
        return used;
    }
    kept(used.or(session), deferred)
}

/// Keeps a session that no later cell can use, if only it has deferred state that the notebook lacks.
fn kept(session: Option<Session>, deferred: &Deferred) -> Option<Session> {
    let session = session.filter(|_| deferred.needs_session())?;
    session.set_share(Share::BetweenCells);
    if let Some(gpu) = session.gpu() {
        gpu.cell(Cell::Ended);
    }
    Some(session)
}

/// Returns the error code if the session can no longer use the GPU since its last cell, and if the notebook needs
/// nothing more from it.
fn gpu_fault(
    session: Option<&Session>,
    deferred: &Deferred,
) -> impl Future<Output = Option<u32>> + use<> {
    let session = session.filter(|_| !deferred.needs_session());
    let fault = session.and_then(Session::gpu).map(Membership::fault);
    async move { fault?.await }
}

/// The session stays in `session` until the cell is sent to it.
async fn prepare_and_run(
    context: &Arc<Context>,
    session: &mut Option<Session>,
    deferred: &mut Deferred,
    job: &mut Job,
) -> Ended {
    let (kind, cancelled, questions) = (
        job.submission.cell.kind,
        job.cancelled.clone(),
        job.questions.clone(),
    );
    let waits = Waits {
        silent: context.config.answer_patience,
        in_all: longest_preparation(&job.submission),
    };
    let prepared = tokio::select! {
        prepared = wake_and_prepare(context, session, deferred, job) => prepared,
        neglect = questions.neglected(waits) => {
            tracing::warn!(?neglect, "A notebook did not answer in time, so its job does not start");
            Err(Ending::without_state(Outcome::Refused, messages::neglected(kind, neglect)))
        }
        () = cancelled.cancelled() => Err(Ending::without_state(Outcome::Cancelled, messages::cancelled(kind))),
    };
    match prepared {
        Ok(ready) => {
            // Deferred state without a keeper has been sent by now, and cannot be read again.
            deferred.lose_session();
            ready.session.set_share(Share::OfCell);
            cell::run_cell(context, ready, job).await
        }
        Err(ending) => Ended::without_session(ending),
    }
}

/// How long the notebook may take for its answers before the cell starts. A short limit of the cell does not count: the
/// student cannot know whether the session needs a complete state.
fn longest_preparation(submission: &Submission) -> Option<Duration> {
    const SHORTEST: Duration = Duration::from_secs(60 * 60);
    let cell = &submission.cell;
    let limit = cell.timeout_ms.map(Duration::from_millis);
    let longest = cell.longest_timeout_ms.map(Duration::from_millis);
    longest.or(limit.map(|limit| limit.max(SHORTEST)))
}

/// A session that has left the GPU returns to it first.
async fn wake_and_prepare<'context>(
    context: &'context Arc<Context>,
    session: &mut Option<Session>,
    deferred: &mut Deferred,
    job: &mut Job,
) -> Result<prepare::Ready<'context>, Ending> {
    if let Some(asleep) = session
        && let Err(error) = asleep.wake().await
    {
        tracing::warn!("A session could not return to the GPU: {error}");
        let kind = job.submission.cell.kind;
        job.warnings.push(messages::gpu_not_back(kind));
        *session = None;
    }
    prepare::prepare(context, session, deferred, job).await
}

impl From<Ending> for JobEvent {
    fn from(ending: Ending) -> Self {
        match ending.finished.error {
            Some(error) if ending.elsewhere => Self::NotStarted { error },
            error => Self::Finished(Finished {
                error,
                ..ending.finished
            }),
        }
    }
}
