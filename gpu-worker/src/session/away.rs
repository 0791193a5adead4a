//! What the last cell left out of its end, on its way to the notebook.
//!
//! ```text
//! settling ──Settled──> ready <──> sending ──> sent
//! ```
//!
//! It is sent while the session has nothing to do. The next cell interrupts that, and once it has started, what is
//! left is told of at its end.
//!
//! **Invariant:** a job that left something out says its last event, whatever happens to its session.

use std::time::Duration;

use baton_blobs::Ledger;
use baton_link::ChunkLane;
use baton_protocol::shim::Snapshot;
use baton_protocol::{JobEvent, RemoteError, State, StateVersion};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::Held;
use crate::context::MoveError;
use crate::job::EventSink;
use crate::job::lanes::{Changes, Way, send_home};
use crate::notice;

/// After a broker or a proxy could not be reached.
const PAUSE: Duration = Duration::from_secs(1);
/// A cell that was queued behind this one arrives sooner, and may change what would be on its way over the network.
const BEFORE_CHUNKS: Duration = Duration::from_millis(100);
/// The cell's end is on its way then, and would wait for a processor while memory is looked at with all of them.
const BEFORE_MEMORY: Duration = Duration::from_millis(10);

pub(crate) struct Away {
    word: RestWord,
    lane: ChunkLane,
    way: Way,
    kernel: i32,
    /// What the notebook has without it.
    version: StateVersion,
    ledger: Ledger,
    stage: Stage,
    /// The session works on another cell.
    paused: bool,
    /// What the notebook has once it has applied what was sent.
    pub(crate) sent: Option<Held>,
}

enum Stage {
    /// The session copies it to where it can be read.
    Settling,
    Ready(Snapshot),
    Sending(
        Snapshot,
        BoxFuture<'static, Result<(State, Ledger), MoveError>>,
    ),
    Over,
}

impl Away {
    /// The job has ended, and says that this follows.
    pub(crate) fn new(
        events: EventSink,
        revoked: CancellationToken,
        (lane, way): (ChunkLane, Way),
        kernel: i32,
        held: &Held,
    ) -> Self {
        Self {
            word: RestWord {
                events,
                revoked,
                said: false,
            },
            lane,
            way,
            kernel,
            version: held.version,
            ledger: held.ledger.clone(),
            stage: Stage::Settling,
            paused: false,
            sent: None,
        }
    }

    /// It can be read from now on.
    pub(crate) fn settle(&mut self, snapshot: Snapshot) {
        if matches!(self.stage, Stage::Settling) {
            self.stage = Stage::Ready(snapshot);
        }
    }

    /// The session begins with something else.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sending(snapshot, _) => Stage::Ready(snapshot),
            stage => stage,
        };
    }

    /// Of that nothing has come: the memory is as it was.
    pub(crate) fn resume(&mut self) {
        self.paused = false;
    }

    /// Another cell has started with it.
    pub(crate) fn superseded(mut self) {
        self.word.say(None, None);
    }

    /// Whether the notebook still needs the session for it.
    pub(crate) fn is_owed(&self) -> bool {
        !matches!(self.stage, Stage::Over)
    }

    /// Sends it, as soon as that is possible. Cancel safe.
    pub(super) async fn send(&mut self) {
        let revoked = self.word.revoked.clone();
        tokio::select! {
            () = self.send_in_the_end() => {}
            () = revoked.cancelled(), if self.is_owed() => self.stage = Stage::Over,
        }
    }

    async fn send_in_the_end(&mut self) {
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Ready(snapshot) if !self.paused => {
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
                    self.stage = Stage::Over;
                    self.sent = Some(Held {
                        version: self.version.after_message(),
                        ledger,
                    });
                    self.word.say(Some(state), None);
                    return;
                }
                Err(MoveError::Link(error)) if error.is_transient() => {
                    tracing::info!(%error, "What a cell left in its session could not be sent yet");
                    self.stage = Stage::Ready(snapshot);
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "What a cell left in its session is lost");
                    self.stage = Stage::Over;
                    self.word.say(None, Some(notice::rest_unreadable(&error)));
                    return;
                }
            }
        }
    }

    fn sending(
        &self,
        snapshot: Snapshot,
    ) -> BoxFuture<'static, Result<(State, Ledger), MoveError>> {
        let changes = Changes {
            kernel: self.kernel,
            base: self.version,
            snapshot,
            ledger: self.ledger.clone(),
        };
        let (lane, way) = (self.lane.clone(), self.way.clone());
        Box::pin(async move {
            let pause = match way {
                Way::Chunks => BEFORE_CHUNKS,
                Way::Memory { .. } => BEFORE_MEMORY,
            };
            tokio::time::sleep(pause).await;
            send_home(lane, way, changes).await
        })
    }
}

/// Sees to it that the job has a last event.
struct RestWord {
    events: EventSink,
    revoked: CancellationToken,
    said: bool,
}

impl RestWord {
    fn say(&mut self, state: Option<State>, error: Option<RemoteError>) {
        if !self.said && !self.revoked.is_cancelled() {
            self.events.send(JobEvent::Rest { state, error });
        }
        self.said = true;
    }
}

impl Drop for RestWord {
    fn drop(&mut self) {
        self.say(None, Some(notice::rest_lost()));
    }
}

/// Without anything to send it waits for ever.
pub(super) async fn send(away: &mut Option<Away>) {
    match away {
        Some(away) => away.send().await,
        None => std::future::pending().await,
    }
}
