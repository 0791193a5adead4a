//! What a student sees of a `%%gpu` cell: its output, and the status line below it.
//!
//! In: outputs of the job, and the cell's status. Out: iopub messages for all clients; for captured cells, outputs to
//! the shim.

use super::{cell::RemoteCell, iopub, output_history::OutputHistory, stop::Stop};
use crate::{
    config::Audience,
    relay::{Relay, is_visible},
};
use baton_jupyter_wire::shim::ShimWriter;
use baton_protocol::{CallId, Output, Usage, shim::ToNotebook};
use baton_transport::frames::FrameError;
use jupyter_protocol::{ClearOutput, CommClose, CommId, StreamContent};

pub(super) struct Display {
    /// `None`: a plain program, which captures all output.
    relay: Option<Relay>,
    history: OutputHistory,
    /// The message id of the cell that shows the last output.
    last_output_below: Option<String>,
}

impl Display {
    pub(super) fn new(audience: Audience) -> Self {
        Self {
            relay: match audience {
                Audience::Clients(relay) => Some(relay),
                Audience::Program { .. } => None,
            },
            history: OutputHistory::default(),
            last_output_below: None,
        }
    }

    /// Shows an output in the place where a cell without Baton would show it.
    pub(super) async fn show(
        &mut self,
        cell: &mut RemoteCell<'_>,
        output: Output,
    ) -> Result<(), Stop> {
        cell.note_comm(&output);
        let relay = match &self.relay {
            Some(relay) if !cell.captured => relay.clone(),
            _ => {
                let publish = ToNotebook::Publish {
                    call: cell.call,
                    output,
                };
                return Ok(cell.writer.send(&publish).await?);
            }
        };
        self.history.note(cell.call, &output);
        if is_visible(&output.kind) {
            self.remove_status_line(cell, true);
            cell.status_line.output_shown();
            self.last_output_below = Some(cell.parent.message_id.clone());
        } else if output.kind == "clear_output" {
            cell.status_line.cleared();
        }
        relay.inject(&cell.parent, output);
        Ok(())
    }

    /// Shows a warning below the cell, where Python's own warnings appear.
    pub(super) async fn warn(
        &mut self,
        cell: &mut RemoteCell<'_>,
        warning: &str,
    ) -> Result<(), Stop> {
        self.show_line(cell, &format!("warning: {warning}")).await
    }

    /// Shows a line of text on stderr, below the cell.
    pub(super) async fn show_line(
        &mut self,
        cell: &mut RemoteCell<'_>,
        line: &str,
    ) -> Result<(), Stop> {
        let content = StreamContent::stderr(&format!("{line}\n"));
        self.show(cell, iopub::output(content)).await
    }

    /// Sends the shim the output of an earlier cell.
    pub(super) async fn replay(
        &self,
        call: CallId,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        let (outputs, missing) = self.history.of(call);
        for output in outputs {
            writer.send(&ToNotebook::Publish { call, output }).await?;
        }
        let given = ToNotebook::OutputGiven { call, missing };
        writer.send(&given).await
    }

    /// Sends the shim the earlier output that it asked for while the cell runs.
    pub(super) async fn replay_wanted(&self, cell: &mut RemoteCell<'_>) -> Result<(), FrameError> {
        for call in std::mem::take(&mut cell.outputs_wanted) {
            self.replay(call, cell.writer).await?;
        }
        Ok(())
    }

    /// Tells a plain program that its job has left the queue.
    pub(super) async fn started(&self, cell: &mut RemoteCell<'_>) -> Result<(), FrameError> {
        if self.relay.is_some() {
            return Ok(());
        }
        let call = cell.call;
        cell.writer.send(&ToNotebook::Started { call }).await
    }

    pub(super) fn begin(&self, cell: &RemoteCell<'_>) {
        if cell.parent.background
            && let Some(relay) = &self.relay
        {
            relay.begin_background(&cell.parent);
        }
    }

    pub(super) async fn end(&self, cell: &mut RemoteCell<'_>) -> Result<(), FrameError> {
        if cell.parent.background
            && let Some(relay) = &self.relay
        {
            relay.end_background(&cell.parent);
        }
        self.replay_wanted(cell).await
    }

    /// Updates the status line if it is due.
    pub(super) async fn refresh_status_line(
        &self,
        cell: &mut RemoteCell<'_>,
    ) -> Result<(), FrameError> {
        let now = cell.now();
        match cell.status_line.refresh(now) {
            Some(message) => self.put_status(cell, message).await,
            None => Ok(()),
        }
    }

    /// Returns the summary of a finished cell for the shim, which shows it below all output of the cell; `None` if the
    /// status line shows it.
    pub(super) async fn summary(
        &self,
        cell: &mut RemoteCell<'_>,
        usage: Usage,
    ) -> Result<Option<Output>, FrameError> {
        self.remove_status_line(cell, true);
        let now = cell.now();
        let Some(text) = cell.status_line.summary(now, usage) else {
            return Ok(None);
        };
        if self.relay.is_some() && cell.status_line.is_shown() {
            let message = cell.status_line.show(&text, now);
            self.put_status(cell, message).await?;
            return Ok(None);
        }
        Ok(Some(iopub::line(&text, None)))
    }

    /// Ends the status line of a cell that returned no result; the shim's message gives the reason.
    pub(super) async fn end_status_line(
        &self,
        cell: &mut RemoteCell<'_>,
    ) -> Result<(), FrameError> {
        self.remove_status_line(cell, false);
        if self.relay.is_none() || !cell.status_line.is_shown() {
            return Ok(());
        }
        let text = format!("The {} did not finish", cell.kind.noun());
        let message = cell.status_line.show(&text, cell.now());
        self.put_status(cell, message).await
    }

    /// Removes the status line, at once or when other output replaces it. Jupyter can only clear
    /// all output of a cell at once, so the line stays if the cell has shown anything else.
    fn remove_status_line(&self, cell: &mut RemoteCell<'_>, when_replaced: bool) {
        let Some(relay) = &self.relay else {
            return;
        };
        let is_alone = !relay.has_output(&cell.parent)
            && self.last_output_below.as_ref() != Some(&cell.parent.message_id);
        if cell.status_line.is_shown() && is_alone {
            let content = ClearOutput {
                wait: when_replaced,
            };
            relay.inject(&cell.parent, iopub::output(content));
            cell.status_line.cleared();
        }
    }

    async fn put_status(&self, cell: &mut RemoteCell<'_>, line: Output) -> Result<(), FrameError> {
        if let Some(relay) = &self.relay {
            relay.inject(&cell.parent, line);
            return Ok(());
        }
        let call = cell.call;
        cell.writer.send(&ToNotebook::Status { call, line }).await
    }

    /// Closes the comms that the cell opened, because no kernel can answer on them.
    pub(super) fn close_comms(&self, cell: &mut RemoteCell<'_>) {
        for comm in cell.comms.drain(..) {
            let content = CommClose {
                comm_id: CommId(comm),
                data: serde_json::Map::new(),
            };
            if let Some(relay) = &self.relay {
                relay.inject(&cell.parent, iopub::output(content));
            }
        }
    }
}
