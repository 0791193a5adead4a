//! The relay: each client connection is spliced to its own connection to the notebook kernel.
//!
//! Greetings, identities, subscriptions and signatures pass untouched, because both sides use the
//! same key. The relay inserts messages only on iopub, and only between whole messages.
//!
//! `listeners` accepts clients, `splice` moves bytes, and `view` carries the kernel's iopub messages to one
//! client. It uses a `queue` for a client that reads slowly and `compaction` for one that reads too slowly.
//!
//! **Invariant:** no task waits for more than one client, so a stalled client delays no other.

mod cells;
mod compaction;
mod listeners;
mod numbers;
mod queue;
mod splice;
mod subscriptions;
mod view;

use baton_jupyter_wire::{
    connection::ConnectionFile,
    message::{Draft, Signer, iopub_topic},
    wire::encode_message,
};
use baton_protocol::Output;
use bytes::Bytes;
use cells::CellLog;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub(crate) use cells::is_visible;
pub(crate) use listeners::Listeners;
pub(crate) use numbers::MessageNumber;
pub(crate) use splice::KernelSide;

/// The cell, or callback of a widget, that an inserted message belongs to.
#[derive(Debug, Clone)]
pub(crate) struct ParentCell {
    /// The header of its `execute_request`, as JSON text.
    pub(crate) header: Bytes,
    pub(crate) message_id: String,
    pub(crate) kernel_session: String,
    /// The kernel's message that the cell's output must follow.
    pub(crate) after: Option<MessageNumber>,
    /// The kernel publishes no `execute_input` for it.
    pub(crate) silent: bool,
    /// The cell goes on after its `idle`.
    pub(crate) background: bool,
}

/// A handle that inserts messages on iopub, for every client that listens.
#[derive(Clone)]
pub(crate) struct Relay {
    shared: Arc<Shared>,
}

struct Shared {
    writer: Option<MessageWriter>,
    limits: view::Limits,
    stage: Mutex<Stage>,
}

#[derive(Default)]
struct Stage {
    viewers: Vec<UnboundedSender<Arc<Injection>>>,
    /// What the viewers together have seen of the cells.
    cells: CellLog,
}

/// A message on its way to all viewers.
#[derive(Debug)]
struct Injection {
    message_id: String,
    after: Option<MessageNumber>,
    silent: bool,
    background: bool,
    topic: String,
    wire: Bytes,
}

/// Writes messages with the kernel's signature.
#[derive(Clone)]
struct MessageWriter {
    signer: Signer,
}

impl MessageWriter {
    /// `kernel_session` is the session id in the kernel's own headers. JupyterLab attributes a message with
    /// another id to a kernel before a restart, and drops it when more messages are queued behind it.
    fn write(&self, topic: Bytes, draft: Draft, kernel_session: &str) -> Bytes {
        let mut frames = vec![topic];
        frames.extend(draft.sign(&self.signer, kernel_session));
        encode_message(&frames)
    }
}

impl Relay {
    pub(crate) fn new(connection: &ConnectionFile) -> Self {
        Self::with_limits(connection, view::Limits::default())
    }

    fn with_limits(connection: &ConnectionFile, limits: view::Limits) -> Self {
        let writer = match Signer::new(&connection.key(), connection.signature_scheme()) {
            Ok(signer) => Some(MessageWriter { signer }),
            Err(error) => {
                tracing::warn!(%error, "The output of %%gpu cells cannot be shown: {error}");
                None
            }
        };
        Self {
            shared: Arc::new(Shared {
                writer,
                limits,
                stage: Mutex::default(),
            }),
        }
    }

    /// Shows a message between the cell's `execute_input` and its `idle`, provided that this
    /// returns before the kernel can publish `idle`. A message of a background cell may also appear
    /// after `idle`. `content` and `metadata` are JSON text.
    pub(crate) fn inject(&self, cell: &ParentCell, output: Output) {
        let Some(writer) = &self.shared.writer else {
            return;
        };
        let topic = iopub_topic(&output.kind, &output.content);
        let draft = Draft {
            parent_header: cell.header.clone(),
            metadata: output.metadata,
            buffers: output.buffers,
            ..Draft::new(&output.kind, output.content)
        };
        let injection = Arc::new(Injection {
            message_id: cell.message_id.clone(),
            after: cell.after.clone(),
            silent: cell.silent,
            background: cell.background,
            wire: writer.write(topic.clone().into(), draft, &cell.kernel_session),
            topic,
        });
        self.stage()
            .viewers
            .retain(|viewer| viewer.send(Arc::clone(&injection)).is_ok());
    }

    /// Remembers until `end_background` that this cell has begun, no matter how many cells follow.
    pub(crate) fn begin_background(&self, cell: &ParentCell) {
        self.stage().cells.keep(&cell.message_id);
    }

    pub(crate) fn end_background(&self, cell: &ParentCell) {
        self.stage().cells.let_go(&cell.message_id);
    }

    /// Whether the notebook kernel has shown something below this cell.
    pub(crate) fn has_output(&self, cell: &ParentCell) -> bool {
        self.stage().cells.has_output(&cell.message_id)
    }

    /// Returns a queue that receives all injections from now on.
    fn join(&self) -> UnboundedReceiver<Arc<Injection>> {
        // Bounded by the viewer, which always empties it without waiting, and limits what it keeps.
        let (sender, injections) = unbounded_channel();
        self.stage().viewers.push(sender);
        injections
    }

    fn writer(&self) -> Option<&MessageWriter> {
        self.shared.writer.as_ref()
    }

    /// A panic cannot poison the lock, because no operation that can fail runs while it is held.
    fn stage(&self) -> MutexGuard<'_, Stage> {
        let stage = self.shared.stage.lock();
        stage.unwrap_or_else(PoisonError::into_inner)
    }
}
