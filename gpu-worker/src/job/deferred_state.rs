//! The deferred state of one cell, on its way to the notebook.
//!
//! ```text
//! copying ─DeferredReady─> ready <──> sending ──> sent ──> over
//!                         ^                     │
//!                         └────── wanted ───────┘
//! ```
//!
//! It is read from a process that keeps it as it was (`keeper.rs`), so the session may run other cells meanwhile,
//! or end. It is over when the notebook has it, or has a later cell's result that includes it: the broker then
//! revokes the assignment. Until then the notebook may ask for it again.
//!
//! **Invariant:** a job with deferred state sends its last event, whatever happens to its session.

use crate::{
    messages,
    report::{EventSink, PromisedEvent},
    session::{Keeper, TableState},
    transfer::{Access, Transport, send_back},
};
use baton_chunks::{Ledger, Severity};
use baton_protocol::{JobEvent, JobKind, RemoteError, State, StateVersion, shim::Snapshot};
use baton_transport::{Backoff, Changes, TransferError};
use futures_util::future::BoxFuture;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// A cell that is queued behind this one starts within this time, and may change what would otherwise be sent over
/// the network.
const BEFORE_CHUNKS: Duration = Duration::from_millis(100);
/// Within this time the cell's end is sent. It would wait for a processor if all of them were scanning memory.
const BEFORE_MEMORY: Duration = Duration::from_millis(10);

pub(crate) struct DeferredState {
    kind: JobKind,
    last_event: PromisedEvent,
    /// The notebook asks for this.
    wanted: Arc<Notify>,
    access: Access,
    transport: Transport,
    /// The session's process.
    kernel: i32,
    keeper: Option<Keeper>,
    /// The version that the notebook has without it.
    version: StateVersion,
    ledger: Ledger,
    stage: Stage,
    copied_within: Duration,
    /// A later cell has ended, whose changes include this. Reset when the notebook asks for this nevertheless.
    overtaken: bool,
    backoff: Backoff,
}

/// What a job needs to report what becomes of its deferred state.
pub(crate) struct DeferredChannels {
    pub(crate) kind: JobKind,
    pub(crate) events: EventSink,
    pub(crate) revoked: CancellationToken,
    pub(crate) wanted: Arc<Notify>,
}

enum Stage {
    /// The session copies it to where it can be read, and must be done at this time.
    Copying(Instant),
    Ready(Snapshot),
    Sending(
        Snapshot,
        BoxFuture<'static, Result<(State, Ledger), TransferError>>,
    ),
    Sent(Snapshot),
    Over,
}

impl DeferredState {
    /// The job has ended, and its end announced that this follows. The session copies it within this time.
    pub(crate) fn new(
        channels: DeferredChannels,
        (access, transport): (Access, Transport),
        kernel: i32,
        held: &TableState,
        copied_within: Duration,
    ) -> Self {
        Self {
            kind: channels.kind,
            last_event: PromisedEvent::new(
                channels.events,
                channels.revoked,
                lost(messages::deferred_lost(channels.kind)),
            ),
            wanted: channels.wanted,
            access,
            transport,
            kernel,
            keeper: None,
            version: held.version,
            ledger: held.ledger.clone(),
            stage: Stage::Copying(Instant::now() + copied_within),
            copied_within,
            overtaken: false,
            backoff: Backoff::default(),
        }
    }

    /// It can be read from now on.
    pub(super) fn on_ready(&mut self, snapshot: Snapshot, keeper: Option<Keeper>) {
        if self.is_copying() {
            self.keeper = keeper;
            self.stage = Stage::Ready(snapshot);
        }
    }

    pub(super) fn is_copying(&self) -> bool {
        self.copied_by().is_some()
    }

    /// When the session must have copied it, if it has not done so yet.
    pub(super) fn copied_by(&self) -> Option<Instant> {
        match self.stage {
            Stage::Copying(by) => Some(by),
            _ => None,
        }
    }

    /// The session could not copy it until now.
    pub(super) fn postpone(&mut self) {
        if let Stage::Copying(by) = &mut self.stage {
            *by = Instant::now() + self.copied_within;
        }
    }

    /// Another cell begins. It may make it unnecessary to send this.
    pub(super) fn pause(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sending(snapshot, _) => Stage::Ready(snapshot),
            stage => stage,
        };
    }

    /// A later cell has ended, and its changes, which include all of this, are being sent.
    pub(super) fn overtake(&mut self) {
        self.overtaken = true;
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Whether it exists only in the session's memory, so that no other cell may run there.
    pub(super) fn needs_session(&self) -> bool {
        match self.stage {
            Stage::Copying(_) => true,
            Stage::Ready(_) | Stage::Sending(..) => self.keeper.is_none(),
            Stage::Sent(_) | Stage::Over => false,
        }
    }

    /// The session has run another cell, or has ended: without a keeper there is nothing left to read.
    pub(super) fn lose_session(&mut self) {
        if self.keeper.is_none() {
            self.stage = Stage::Over;
            let error = messages::deferred_lost(self.kind);
            self.last_event.send(lost(error));
        }
    }

    /// Returns what the notebook has once it has applied what was sent now, or `None` when this is over. Cancel
    /// safe.
    pub(super) async fn next(&mut self) -> Option<TableState> {
        let wanted = self.wanted.clone();
        let mut revoked = pin!(self.last_event.revoked());
        loop {
            tokio::select! {
                held = self.send() => return held,
                () = wanted.notified() => self.on_wanted(),
                () = &mut revoked => {
                    self.stage = Stage::Over;
                    return None;
                }
            }
        }
    }

    fn on_wanted(&mut self) {
        self.overtaken = false;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sent(snapshot) => Stage::Ready(snapshot),
            stage => stage,
        };
    }

    async fn send(&mut self) -> Option<TableState> {
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Ready(snapshot) if !self.overtaken => {
                    let sending = self.sending(snapshot.clone());
                    Stage::Sending(snapshot, sending)
                }
                stage => stage,
            };
            let Stage::Sending(snapshot, sending) = &mut self.stage else {
                return std::future::pending().await;
            };
            let result = sending.await;
            let snapshot = snapshot.clone();
            match result {
                Ok((state, ledger)) => {
                    self.backoff.reset();
                    self.stage = Stage::Sent(snapshot);
                    self.last_event.send_before(JobEvent::DeferredState {
                        state: Some(state),
                        error: None,
                    });
                    return Some(TableState {
                        version: self.version.after_message(),
                        ledger,
                    });
                }
                Err(error) if error.severity() == Severity::Lasting => {
                    tracing::warn!(%error, "Deferred state is lost");
                    self.stage = Stage::Over;
                    let error = messages::deferred_unreadable(self.kind, &error);
                    self.last_event.send(lost(error));
                    return None;
                }
                Err(error) => {
                    tracing::info!(%error, "Deferred state could not be sent yet");
                    self.stage = Stage::Ready(snapshot);
                    tokio::time::sleep(self.backoff.next_delay()).await;
                }
            }
        }
    }

    fn sending(
        &self,
        snapshot: Snapshot,
    ) -> BoxFuture<'static, Result<(State, Ledger), TransferError>> {
        let keeper = self.keeper.as_ref();
        let changes = Changes {
            kernel: keeper.map_or(self.kernel, |keeper| keeper.process().as_raw()),
            base: self.version,
            snapshot,
            ledger: self.ledger.clone(),
        };
        let (access, transport) = (self.access.clone(), self.transport.clone());
        Box::pin(async move {
            let pause = match transport {
                Transport::Chunks => BEFORE_CHUNKS,
                Transport::Memory { .. } => BEFORE_MEMORY,
            };
            tokio::time::sleep(pause).await;
            send_back(&access, transport, changes)
                .await
                .map_err(|not_sent| not_sent.error)
        })
    }
}

fn lost(error: RemoteError) -> JobEvent {
    JobEvent::DeferredState {
        state: None,
        error: Some(error),
    }
}
