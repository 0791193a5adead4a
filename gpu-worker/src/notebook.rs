//! One notebook on this worker: its jobs one after the other, and its session in between.
//!
//! In: orders. Out: the jobs' events, and whether the session is warm. The task ends when the agent closes the
//! channel; then the session ends too.

use std::sync::Arc;

use baton_protocol::NotebookId;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::context::Context;
use crate::job::{Order, run_job};
use crate::report::Report;
use crate::session::{Rest, Session};

/// How one task reports.
pub(crate) struct Reporter {
    pub(crate) notebook: NotebookId,
    /// A notebook may have several tasks, one after the other.
    pub(crate) task: u64,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
}

impl Reporter {
    fn say(&self, job_over: bool, session: Option<&Session>) {
        // Without an agent nobody wants to know.
        let _ = self.reports.send(Report::Notebook {
            notebook: self.notebook,
            task: self.task,
            job_over,
            warm: session.is_some(),
            owes: session.is_some_and(Session::owes),
        });
    }
}

pub(crate) async fn serve_notebook(
    context: Arc<Context>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    reporter: Reporter,
) {
    let mut session: Option<Session> = None;
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some(order) = order else {
                    return;
                };
                let span = tracing::error_span!("job", job.id = %order.events.job);
                session = run_job(&context, session.take(), order).instrument(span).await;
                reporter.say(true, session.as_ref());
            }
            rest = rest(&mut session) => {
                match rest {
                    Rest::Sent => {}
                    Rest::Ended(death) => {
                        tracing::info!(?death.status, "A session ended while no cell ran");
                        session = None;
                    }
                    Rest::Released => session = vacate(session, reporter.notebook).await,
                }
                reporter.say(false, session.as_ref());
            }
        }
    }
}

/// Others need its part of the GPU.
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
    tracing::info!(%notebook, "The session of notebook {notebook} {what}: others need its part of the GPU");
    session.filter(|_| stays)
}

async fn rest(session: &mut Option<Session>) -> Rest {
    match session {
        Some(session) => session.rest().await,
        None => std::future::pending().await,
    }
}
