//! What happens while no cell runs: deferred state arrives, and a session may end.
//!
//! In: events of the link. Out: messages to the shim.

use super::RemoteCells;
use baton_jupyter_wire::shim::ShimWriter;
use baton_protocol::{CallId, shim::ToNotebook};
use baton_transport::frames::FrameError;

/// What can happen while no cell runs.
pub(crate) enum BetweenCells {
    /// [`RemoteCells::send_deferred`] has something for the shim.
    Deferred,
    /// The session on this worker ended.
    SessionEnded(String),
}

impl RemoteCells {
    /// Waits for an event while no cell runs. Cancel safe.
    pub(crate) async fn between_cells(&mut self) -> BetweenCells {
        loop {
            let ended = tokio::select! {
                () = self.deferred.next(&mut self.link) => {
                    return BetweenCells::Deferred;
                }
                worker = self.ended.next() => worker,
            };
            let is_its_own = self.session_on.as_ref() == Some(&ended);
            if self.session.is_some() && is_its_own {
                return BetweenCells::SessionEnded(ended);
            }
        }
    }

    /// The shim knows which objects only that session held.
    pub(crate) async fn send_session_ended(
        &mut self,
        worker: String,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        tracing::info!("The session on {worker} ended, and the objects that only it held are lost");
        self.session = None;
        writer.send(&ToNotebook::SessionEnded { worker }).await
    }

    /// Sends the shim what [`Self::between_cells`] has waited for.
    pub(crate) async fn send_deferred(
        &mut self,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        let lost = self.deferred.send(&self.link, writer).await?;
        if lost {
            self.session = None;
        }
        Ok(())
    }

    pub(crate) async fn on_deferred_applied(&mut self, call: CallId, error: Option<String>) {
        self.deferred
            .on_applied(&self.link, call, error, &mut self.session)
            .await;
    }

    /// The kernel's object table is gone, so the session's state is of no use.
    pub(crate) async fn forget_state(&mut self) {
        self.session = None;
        self.deferred.replace(&mut self.link, None).await;
    }

    /// Sends the shim the output of an earlier cell.
    pub(crate) async fn replay_output(
        &self,
        call: CallId,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        self.display.replay(call, writer).await
    }
}
