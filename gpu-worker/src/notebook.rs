//! One notebook on this worker: runs its jobs one after the other, keeps its session in between, and sends the
//! deferred state that the notebook still lacks.
//!
//! In: jobs. Out: the jobs' events, and whether the session is warm. The task ends when the agent closes the
//! channel; then the session ends, too.

use crate::{
    context::Context,
    deadline::at,
    job::{Deferred, Job, Salvage, run_job},
    report::Report,
    session::{AfterCell, Session},
};
use baton_protocol::NotebookId;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::Instrument;

/// How one task reports.
pub(crate) struct Reporter {
    pub(crate) notebook: NotebookId,
    /// A notebook may have several tasks, one after the other.
    pub(crate) task: u64,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
}

impl Reporter {
    fn report(&self, job_over: bool, session: Option<&Session>, deferred: &Deferred) {
        // If this fails, the agent has ended and needs no report.
        let _ = self.reports.send(Report::Notebook {
            notebook: self.notebook,
            task: self.task,
            job_over,
            warm: session.is_some(),
            defers: deferred.is_any(),
            keeps: session.is_some_and(|session| session.keeps),
        });
    }
}

pub(crate) async fn serve_notebook(
    context: Arc<Context>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    reporter: Reporter,
) {
    let mut session: Option<Session> = None;
    let mut deferred = Deferred::default();
    let mut salvage: Option<Salvage> = None;
    loop {
        let mut job_over = false;
        tokio::select! {
            // What a cell left is wanted before the broker assigns the notebook's next job, so it is taken before that.
            biased;
            () = Salvage::wanted(salvage.as_ref()), if session.is_some() => {
                if let (Some(salvage), Some(from)) = (salvage.take(), session.take()) {
                    session = salvage.take(from, context.access.clone()).await;
                }
            }
            job = jobs.recv() => {
                let Some(job) = job else {
                    return;
                };
                let span = tracing::error_span!("job", job.id = %job.events.job);
                deferred.pause();
                // The notebook has what the previous cell left, or the broker has asked for it already.
                salvage = None;
                let run = run_job(&context, session.take(), &mut deferred, &mut salvage, job);
                session = run.instrument(span).await;
                job_over = true;
            }
            event = after_cell(&mut session, !deferred.needs_session()) => {
                match event {
                    AfterCell::DeferredReady(snapshot, keeper) => deferred.on_ready(snapshot, keeper),
                    AfterCell::Ended(death) => {
                        tracing::info!(?death.status, ?death.full_disk, "A session ended while no cell ran");
                        session = None;
                    }
                    AfterCell::Released => session = vacate(session, reporter.notebook).await,
                }
            }
            () = at(deferred.next_look()) => {
                if deferred.is_overdue(session.as_ref()).await {
                    let notebook = reporter.notebook;
                    tracing::warn!(%notebook, "The session of notebook {notebook} ends: it did not hand over its results");
                    session = None;
                }
            }
            sent = deferred.next() => {
                if let (Some(session), Some(sent)) = (&mut session, sent) {
                    session.has_sent(sent);
                }
            }
        }
        match &mut session {
            Some(session) if job_over => {
                let changed = session.has_other_mappings().then_some(session.kernel());
                context.zygotes.learn(session.python(), changed);
            }
            Some(_) => {}
            None => {
                deferred.lose_session();
                salvage = None;
            }
        }
        reporter.report(job_over, session.as_ref(), &deferred);
    }
}

/// Moves the session off the GPU, or else ends it: other sessions need its part.
async fn vacate(mut session: Option<Session>, notebook: NotebookId) -> Option<Session> {
    let stays = match &mut session {
        Some(session) => session.sleep().await,
        None => false,
    };
    let what = if stays {
        "leaves the GPU until its next cell"
    } else {
        "ends"
    };
    tracing::info!(%notebook, "The session of notebook {notebook} {what}: other sessions need its part of the GPU");
    session.filter(|_| stays)
}

async fn after_cell(session: &mut Option<Session>, may_leave: bool) -> AfterCell {
    match session {
        Some(session) => session.after_cell(may_leave).await,
        None => std::future::pending().await,
    }
}
