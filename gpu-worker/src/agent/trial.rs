//! Tries whether sessions start here and run a cell.
//!
//! In: that a session did not start, or was lost. Out: reports of why none starts; the trial ends when one does.

use super::asked;
use crate::{context::Context, report::Report, stop::Stop};
use futures_util::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};

/// While sessions fail to start, the pause between two trials grows from this to [`LONGEST_TRIAL_PAUSE`].
pub(super) const TRIAL_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_TRIAL_PAUSE: Duration = Duration::from_secs(60);

/// Completes when a session starts.
#[derive(Default)]
pub(super) struct Trial(Option<BoxFuture<'static, ()>>);

impl Trial {
    /// Begins after a pause, unless a trial has already begun.
    pub(super) fn begin(
        &mut self,
        context: Arc<Context>,
        reports: mpsc::UnboundedSender<Report>,
        pause: Duration,
    ) {
        self.0
            .get_or_insert_with(|| Box::pin(until_a_session_starts(context, reports, pause)));
    }

    /// Waits for its end. Cancel safe.
    pub(super) async fn passed(&mut self) {
        match &mut self.0 {
            Some(trial) => trial.await,
            None => std::future::pending().await,
        }
        self.0 = None;
    }
}

/// The trial of a worker that starts, before a job arrives that would fail.
/// Returns `Some(None)` if they do, `Some(reason)` if not, and `None` if the worker was asked to stop meanwhile.
pub(crate) async fn first_trial(
    context: &Arc<Context>,
    stop: &mut watch::Receiver<Stop>,
) -> Option<Option<String>> {
    context
        .config
        .status
        .send_modify(|status| status.trying = true);
    let asked = async { while asked(stop).await == Stop::No {} };
    tokio::select! {
        why = why_no_session_starts(context) => Some(why),
        () = asked => None,
    }
}

async fn until_a_session_starts(
    context: Arc<Context>,
    reports: mpsc::UnboundedSender<Report>,
    mut pause: Duration,
) {
    loop {
        tokio::time::sleep(pause).await;
        match why_no_session_starts(&context).await {
            None => return,
            // If the receiver is gone, the agent is ending.
            Some(why) => drop(reports.send(Report::TrialFailed(why))),
        }
        pause = (2 * pause).clamp(TRIAL_PAUSE, LONGEST_TRIAL_PAUSE);
    }
}

async fn why_no_session_starts(context: &Context) -> Option<String> {
    let error = context.try_a_session().await.err()?;
    let why = error.explained().0;
    tracing::error!("Sessions cannot start here, so this worker accepts no cells: {why}");
    Some(why)
}
