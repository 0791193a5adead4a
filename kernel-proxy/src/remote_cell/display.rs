//! What a student sees of a `%%gpu` cell: its output, and the status line below it.
//!
//! In: outputs of the job, and the cell's status. Out: iopub messages for all clients; for captured cells, outputs to
//! the shim.

use baton_jupyter_wire::shim::ShimWriter;
use baton_protocol::shim::ToNotebook;
use baton_protocol::{CallId, Output, Usage};
use baton_transport::frames::FrameError;
use bytes::Bytes;

use super::cell::{RemoteCell, Stop};
use super::output_history::OutputHistory;
use super::status_line::StatusMessage;
use crate::relay::{Relay, is_visible};

pub(super) struct Display {
    relay: Relay,
    history: OutputHistory,
    /// The message id of the cell that the last output stands below.
    last_output_below: Option<String>,
}

impl Display {
    pub(super) fn new(relay: Relay) -> Self {
        Self {
            relay,
            history: OutputHistory::default(),
            last_output_below: None,
        }
    }

    /// Shows an output where a cell without Baton would show it.
    pub(super) async fn show(
        &mut self,
        cell: &mut RemoteCell<'_>,
        output: Output,
    ) -> Result<(), Stop> {
        cell.note_comm(&output);
        if cell.captured {
            let publish = ToNotebook::Publish {
                call: cell.call,
                output,
            };
            return Ok(cell.writer.send(&publish).await?);
        }
        self.history.note(cell.call, &output);
        if is_visible(&output.kind) {
            self.remove_status_line(cell, true);
            cell.status_line.output_shown();
            self.last_output_below = Some(cell.parent.message_id.clone());
        } else if output.kind == "clear_output" {
            cell.status_line.cleared();
        }
        self.relay.inject(
            &cell.parent,
            &output.kind,
            &output.content,
            &output.metadata,
            &output.buffers,
        );
        Ok(())
    }

    /// Shows a warning below the cell, where Python's own warnings appear.
    pub(super) async fn warn(
        &mut self,
        cell: &mut RemoteCell<'_>,
        warning: &str,
    ) -> Result<(), Stop> {
        self.say(cell, &format!("warning: {warning}")).await
    }

    /// Shows a line there.
    pub(super) async fn say(&mut self, cell: &mut RemoteCell<'_>, line: &str) -> Result<(), Stop> {
        let content = serde_json::json!({ "name": "stderr", "text": format!("{line}\n") });
        let output = Output {
            kind: "stream".to_owned(),
            content: content.to_string().into(),
            metadata: "{}".into(),
            buffers: Vec::new(),
        };
        self.show(cell, output).await
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

    /// Sends the shim what it asked for while a cell runs.
    pub(super) async fn replay_wanted(&self, cell: &mut RemoteCell<'_>) -> Result<(), FrameError> {
        for call in std::mem::take(&mut cell.outputs_wanted) {
            self.replay(call, cell.writer).await?;
        }
        Ok(())
    }

    pub(super) fn begin(&self, cell: &RemoteCell<'_>) {
        if cell.parent.background {
            self.relay.begin_background(&cell.parent);
        }
    }

    pub(super) async fn end(&self, cell: &mut RemoteCell<'_>) -> Result<(), FrameError> {
        if cell.parent.background {
            self.relay.end_background(&cell.parent);
        }
        self.replay_wanted(cell).await
    }

    /// Updates the status line if it is due.
    pub(super) fn refresh_status_line(&self, cell: &mut RemoteCell<'_>) {
        let now = cell.now();
        if let Some(message) = cell.status_line.look(now) {
            self.put_status(cell, &message);
        }
    }

    /// Returns the summary of a finished cell for the shim, which shows it below all output of the cell; `None` if the
    /// status line shows it.
    pub(super) fn summary(&self, cell: &mut RemoteCell<'_>, usage: Usage) -> Option<Output> {
        self.remove_status_line(cell, true);
        let now = cell.now();
        let text = cell.status_line.summary(now, usage)?;
        if cell.status_line.is_shown() {
            let message = cell.status_line.show(&text, now);
            self.put_status(cell, &message);
            return None;
        }
        let message = StatusMessage::new(&text);
        Some(Output {
            kind: message.kind.to_owned(),
            content: message.content.into(),
            metadata: Bytes::from_static(b"{}"),
            buffers: Vec::new(),
        })
    }

    /// Ends the status line of a cell that returned nothing; the shim's message gives the reason.
    pub(super) fn end_status_line(&self, cell: &mut RemoteCell<'_>) {
        self.remove_status_line(cell, false);
        if cell.status_line.is_shown() {
            let message = cell.status_line.show("The cell did not finish", cell.now());
            self.put_status(cell, &message);
        }
    }

    /// Removes the status line, at once or when other output replaces it. Jupyter can clear only all output of a
    /// cell, so the line stays if the cell has shown anything else.
    fn remove_status_line(&self, cell: &mut RemoteCell<'_>, when_replaced: bool) {
        let is_alone = !self.relay.has_output(&cell.parent)
            && self.last_output_below.as_ref() != Some(&cell.parent.message_id);
        if cell.status_line.is_shown() && is_alone {
            let content = serde_json::json!({"wait": when_replaced}).to_string();
            self.relay
                .inject(&cell.parent, "clear_output", content.as_bytes(), b"{}", &[]);
            cell.status_line.cleared();
        }
    }

    fn put_status(&self, cell: &RemoteCell<'_>, message: &StatusMessage) {
        let content = message.content.as_bytes();
        self.relay
            .inject(&cell.parent, message.kind, content, b"{}", &[]);
    }

    /// Closes the comms that the cell opened: nothing can answer on them.
    pub(super) fn close_comms(&self, cell: &mut RemoteCell<'_>) {
        for comm in cell.comms.drain(..) {
            let content = serde_json::json!({"comm_id": comm, "data": {}}).to_string();
            self.relay
                .inject(&cell.parent, "comm_close", content.as_bytes(), b"{}", &[]);
        }
    }
}
