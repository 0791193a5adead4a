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
    /// The session copies it to where it can be read.
    Copying(CopyingTime),
    Ready(Snapshot),
    Sending(
        Snapshot,
        BoxFuture<'static, Result<(State, Ledger), TransferError>>,
    ),
    Sent(Snapshot),
    Over,
}

/// The time that a session has left to copy deferred state.
struct CopyingTime {
    left: Duration,
    /// When it was last looked at.
    since: Instant,
}

impl CopyingTime {
    fn new(left: Duration) -> Self {
        Self {
            left,
            since: Instant::now(),
        }
    }

    fn next_look(&self) -> Instant {
        // A session that waits may have very little left for a long time.
        const OFTEN: Duration = Duration::from_millis(100);
        self.since + self.left.max(OFTEN)
    }

    fn is_over(&mut self, waited: Duration) -> bool {
        let now = Instant::now();
        let used = (now - self.since).saturating_sub(waited);
        self.left = self.left.saturating_sub(used);
        self.since = now;
        self.left.is_zero()
    }
}

impl DeferredState {
    /// The job has ended, and its end announced that this follows. `copied_within`: not counting time in which the session
    /// cannot copy.
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
            stage: Stage::Copying(CopyingTime::new(copied_within)),
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
        self.next_look().is_some()
    }

    /// When to look whether the session has had its time to copy it; `None` if it has copied it.
    pub(super) fn next_look(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Copying(time) => Some(time.next_look()),
            _ => None,
        }
    }

    /// Whether the session has had its time to copy it. `waited`: how much of the time since the last look it could not
    /// copy.
    pub(super) fn is_overdue(&mut self, waited: Duration) -> bool {
        match &mut self.stage {
            Stage::Copying(time) => time.is_over(waited),
            _ => false,
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, sleep_until};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn time_in_which_a_session_cannot_copy_does_not_count() {
        let began = Instant::now();
        let mut time = CopyingTime::new(30 * SECOND);
        let mut look = async |waited| {
            sleep_until(time.next_look()).await;
            (time.is_over(waited), began.elapsed().as_secs())
        };
        // It waited before the first look, but not at that moment.
        assert_eq!(look(28 * SECOND).await, (false, 30));
        assert_eq!(look(20 * SECOND).await, (false, 58));
        assert_eq!(look(Duration::ZERO).await, (true, 78));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_waits_with_little_time_left_is_looked_at_now_and_then() {
        let mut time = CopyingTime::new(SECOND);
        advance(SECOND - Duration::from_nanos(1)).await;
        assert!(!time.is_over(Duration::ZERO));
        let mut looks = 0;
        let until = Instant::now() + 10 * SECOND;
        while Instant::now() < until {
            let since = Instant::now();
            sleep_until(time.next_look()).await;
            assert!(!time.is_over(since.elapsed()));
            looks += 1;
        }
        assert_eq!(looks, 100);
        sleep_until(time.next_look()).await;
        assert!(time.is_over(Duration::ZERO));
    }
}
