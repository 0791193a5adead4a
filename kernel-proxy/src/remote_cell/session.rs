//! The notebook's session as the proxy knows it, and what happens to it while no cell runs: deferred state arrives, and
//! the session may end.
//!
//! In: events of the link. Out: messages to the shim.

use super::{
    deferred::Deferred,
    link::{EndedSessions, Link},
    session_state::SessionState,
};
use baton_jupyter_wire::shim::ShimWriter;
use baton_protocol::{CallId, shim::ToNotebook};
use baton_transport::frames::FrameError;

pub(super) struct Session {
    /// `None` before the first cell and after any failure.
    pub(super) state: Option<SessionState>,
    /// The worker that has the session.
    pub(super) worker: Option<String>,
    pub(super) deferred: Deferred,
    /// The notebook's sessions that have ended, on any worker.
    pub(super) ended: EndedSessions,
}

/// What can happen while no cell runs.
pub(crate) enum BetweenCells {
    Deferred,
    /// The session on this worker ended.
    SessionEnded(String),
}

impl Session {
    pub(super) fn new(ended: EndedSessions) -> Self {
        Self {
            state: None,
            worker: None,
            deferred: Deferred::default(),
            ended,
        }
    }

    /// Cancel safe.
    pub(super) async fn next_event(&mut self, link: &mut Link) -> BetweenCells {
        loop {
            let ended = tokio::select! {
                () = self.deferred.next(link) => return BetweenCells::Deferred,
                worker = self.ended.next() => worker,
            };
            let is_its_own = self.worker.as_ref() == Some(&ended);
            if self.state.is_some() && is_its_own {
                return BetweenCells::SessionEnded(ended);
            }
        }
    }

    /// Sends the shim what [`Self::next_event`] has waited for.
    pub(super) async fn send(
        &mut self,
        event: BetweenCells,
        link: &Link,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        match event {
            BetweenCells::Deferred => {
                let lost = self.deferred.send(link, writer).await?;
                self.state.take_if(|_| lost);
                Ok(())
            }
            // The shim knows which objects only that session held.
            BetweenCells::SessionEnded(worker) => {
                tracing::info!(
                    "The session on {worker} ended, and the objects that only it held are lost"
                );
                self.state = None;
                writer.send(&ToNotebook::SessionEnded { worker }).await
            }
        }
    }

    /// The shim has applied the deferred state, or could not.
    pub(super) async fn on_applied(&mut self, link: &Link, call: CallId, error: Option<String>) {
        self.deferred
            .on_applied(link, call, error, &mut self.state)
            .await;
    }

    pub(super) async fn forget(&mut self, link: &mut Link) {
        self.state = None;
        self.deferred.replace(link, None).await;
    }
}
