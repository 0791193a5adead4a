//! The cell itself: told to the session, watched, its outputs passed on, its state collected.
//!
//! ```text
//! applying ──Started──> running ──Finished──> collecting ──collected──> closing ──reply and idle──> the end
//! ```
//!
//! From every phase a death of the session, too much memory, a cancel that nobody obeys and the worker's own end lead
//! to an ending without state.
//!
//! **Invariant:** the last event comes after every output of the cell.

use std::os::fd::AsFd;
use std::time::Duration;

use baton_blobs::Ledger;
use baton_jupyter_link::client::{ClientError, KernelMessage, Source};
use baton_link::frames::FrameError;
use baton_protocol::shim::{FromSession, Snapshot, ToSession};
use baton_protocol::{Cell, JobEvent, Outcome, Output, RemoteError, State, StateVersion, Usage};
use futures_util::future::BoxFuture;
use jupyter_protocol::ExecuteRequest;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use super::lanes::{Changes, Way, send_home};
use super::plan::{after_apply, after_cell};
use super::prepare::Ready;
use super::{Ending, Order};
use crate::batch::Batcher;
use crate::context::{Context, MoveError};
use crate::notice::{self, Limit};
use crate::outbox::state_bytes;
use crate::processes;
use crate::session::{Held, Session, SessionEvent};

const MEMORY_POLL: Duration = Duration::from_millis(250);

/// How long a session may take for what only it can do and what takes no time.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long outputs wait where the broker takes none, before it is looked again.
const FULL_POLL: Duration = Duration::from_millis(60);

/// What is larger does not fit into one message.
const LARGEST_STATE_BYTES: usize = 48 << 20;

pub(crate) async fn run_cell(
    context: &Context,
    ready: Ready<'_>,
    order: &mut Order,
) -> (Ending, Option<Session>) {
    let Ready {
        mut session,
        base,
        state,
        way,
        _slot,
    } = ready;
    let cell = order.submission.cell.clone();
    let told = tell(&mut session, &cell, state.delta, state.file.as_fd()).await;
    // From here on the file is the session's.
    drop(state.file);
    if let Err(error) = told {
        tracing::warn!(%error, "A session could not be told its cell");
        let error = notice::session_failed("The session could not be given the cell");
        return (Ending::without_state(Outcome::WorkerLost, error), None);
    }
    let mut run = Run {
        context,
        session,
        base,
        way,
        phase: Phase::Applying {
            ledger: state.ledger,
        },
        closing: Closing::default(),
        batcher: Batcher::default(),
        usage: Usage::default(),
        memory_bytes: 0,
        cancel: Cancel::NotAsked,
        limit: cell.timeout_ms.map(|time| Limit {
            time: Duration::from_millis(time),
            longest: cell.longest_timeout_ms.map(Duration::from_millis),
        }),
        time_is_up: false,
        deadline: None,
    };
    let mut ending = run.until_end(order, &cell).await;
    run.flush(order);
    ending.usage = run.usage;
    let session = run.keep_session(&ending);
    (ending, session)
}

#[derive(Debug, thiserror::Error)]
enum TellError {
    #[error(transparent)]
    Shim(#[from] FrameError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

async fn tell(
    session: &mut Session,
    cell: &Cell,
    delta: baton_protocol::shim::Delta,
    file: std::os::fd::BorrowedFd<'_>,
) -> Result<(), TellError> {
    let prepare = ToSession::Prepare {
        message_id: cell.message_id.clone(),
        execution_count: cell.execution_count,
        delta,
    };
    session.shim.send_with_file(&prepare, file).await?;
    let request = ExecuteRequest {
        code: cell.code.clone(),
        silent: cell.silent,
        store_history: false,
        user_expressions: None,
        allow_stdin: cell.allow_stdin,
        // One cell at a time: there is nothing behind it that could be stopped.
        stop_on_error: false,
    };
    Ok(session.client.execute(&cell.message_id, &request).await?)
}

struct Run<'context> {
    context: &'context Context,
    session: Session,
    base: StateVersion,
    way: Way,
    phase: Phase,
    closing: Closing,
    batcher: Batcher,
    usage: Usage,
    /// At the last look.
    memory_bytes: u64,
    cancel: Cancel,
    /// How long the cell may run.
    limit: Option<Limit>,
    /// Nobody pressed interrupt: the limit did.
    time_is_up: bool,
    /// When something that takes no time has taken too long.
    deadline: Option<Instant>,
}

enum Phase {
    /// The session reads the state.
    Applying {
        ledger: Ledger,
    },
    Running {
        ledger: Ledger,
        since: Instant,
    },
    /// The cell has ended; what changed is read and uploaded.
    Collecting {
        outcome: Outcome,
        error: Option<RemoteError>,
        collected: BoxFuture<'static, Collected>,
    },
    /// Everything is there but the last messages of the session's kernel.
    Closing {
        ending: Ending,
        ledger: Ledger,
    },
    /// Between two phases, and at the end.
    Over,
}

/// What came out of the session, and how much memory it held.
type Collected = (Result<(State, Ledger), MoveError>, Option<u64>);

/// What the student wants who pressed interrupt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cancel {
    NotAsked,
    /// Who has not obeyed at this time loses the session.
    Asked(Instant),
    /// The cell has come to its end anyway.
    Moot,
}

/// What a session's kernel says last.
#[derive(Default)]
struct Closing {
    replied: bool,
    idle: bool,
}

impl Closing {
    fn is_complete(&self) -> bool {
        self.replied && self.idle
    }
}

enum Event {
    Session(SessionEvent),
    Input(Option<String>),
    Cancelled,
    Stopping,
    Collected(Collected),
    MemoryDue,
    OutputDue,
    CancelIgnored,
    TimeIsUp,
    TooLate,
}

impl Run<'_> {
    async fn until_end(&mut self, order: &mut Order, cell: &Cell) -> Ending {
        let mut memory = interval_at(Instant::now() + MEMORY_POLL, MEMORY_POLL);
        memory.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = self.next_event(order, &mut memory).await;
            if let Some(ending) = self.on_event(event, order, cell).await {
                return ending;
            }
        }
    }

    async fn next_event(&mut self, order: &mut Order, memory: &mut Interval) -> Event {
        let output_due = self.output_due(order);
        let cancel_due = match self.cancel {
            Cancel::Asked(instant) => Some(instant),
            Cancel::NotAsked | Cancel::Moot => None,
        };
        let time_is_up = match (&self.phase, self.cancel, self.limit) {
            // A limit that no clock can hold is none.
            (Phase::Running { since, .. }, Cancel::NotAsked, Some(limit)) => {
                since.checked_add(limit.time)
            }
            _ => None,
        };
        let collected = async {
            match &mut self.phase {
                Phase::Collecting { collected, .. } => collected.await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            event = self.session.next() => Event::Session(event),
            Some(value) = order.inputs.recv() => Event::Input(value),
            () = order.cancelled.cancelled(), if self.cancel == Cancel::NotAsked => Event::Cancelled,
            () = self.context.stopping.cancelled() => Event::Stopping,
            collected = collected => Event::Collected(collected),
            () = at(output_due) => Event::OutputDue,
            () = at(cancel_due) => Event::CancelIgnored,
            () = at(time_is_up) => Event::TimeIsUp,
            () = at(self.deadline) => Event::TooLate,
            _ = memory.tick() => Event::MemoryDue,
        }
    }

    fn output_due(&self, order: &Order) -> Option<Instant> {
        // Nothing is believed of a run that has not started, and the shim's word that it has comes by another way.
        if matches!(self.phase, Phase::Applying { .. }) {
            return None;
        }
        let now = Instant::now();
        let due = Instant::from_std(self.batcher.due(now.into_std())?);
        Some(if order.events.is_full() {
            now + FULL_POLL
        } else {
            due
        })
    }

    /// The ending, if this was the last event.
    async fn on_event(&mut self, event: Event, order: &mut Order, cell: &Cell) -> Option<Ending> {
        match event {
            Event::Session(SessionEvent::Kernel(message)) => return self.on_kernel(message, cell),
            Event::Session(SessionEvent::Shim(message)) => {
                return self.on_shim(message, order, cell).await;
            }
            Event::Session(SessionEvent::Ended(death)) => {
                for message in self.session.remains().await {
                    self.on_kernel(message, cell);
                }
                tracing::warn!(?death.status, "A session died while it had a cell");
                let error = notice::session_died(&death, self.memory_bytes);
                return Some(Ending::without_state(Outcome::WorkerLost, error));
            }
            Event::Input(value) => self.answer(ToSession::Input { value }).await,
            Event::Cancelled => self.on_cancelled(),
            Event::TimeIsUp => {
                self.time_is_up = true;
                self.on_cancelled();
            }
            Event::CancelIgnored if self.time_is_up => {
                return Some(Ending::without_state(
                    Outcome::TimedOut,
                    notice::timed_out(self.limit.unwrap_or_default()),
                ));
            }
            Event::CancelIgnored => {
                return Some(Ending::without_state(
                    Outcome::Cancelled,
                    notice::cancelled(),
                ));
            }
            Event::Stopping => {
                return Some(Ending::without_state(
                    Outcome::WorkerLost,
                    notice::shutting_down(),
                ));
            }
            Event::Collected(collected) => return self.on_collected(collected, cell).await,
            Event::MemoryDue => {
                let bytes = self.memory().await;
                return self.on_memory(bytes);
            }
            Event::OutputDue if order.events.is_full() => {}
            Event::OutputDue => self.flush(order),
            Event::TooLate => return Some(self.on_too_late()),
        }
        None
    }

    fn on_kernel(&mut self, message: KernelMessage, cell: &Cell) -> Option<Ending> {
        if message.is_reply_to(&cell.message_id) {
            self.closing.replied = true;
        } else if message.is_idle_of(&cell.message_id) {
            self.closing.idle = true;
        } else if message.source == Source::Iopub && is_output(&message.kind) {
            self.batcher.push(Output {
                kind: message.kind,
                content: message.content,
                metadata: message.metadata,
                buffers: message.buffers,
            });
            return None;
        } else {
            return None;
        }
        if matches!(self.phase, Phase::Closing { .. }) {
            return self.close();
        }
        // The shim speaks before its kernel does; but its message may still be on its way to this task.
        if self.closing.is_complete() && self.deadline.is_none() {
            self.deadline = Some(Instant::now() + PATIENCE);
        }
        None
    }

    async fn on_shim(
        &mut self,
        message: FromSession,
        order: &Order,
        cell: &Cell,
    ) -> Option<Ending> {
        match (message, std::mem::replace(&mut self.phase, Phase::Over)) {
            (FromSession::Started { .. }, Phase::Applying { ledger }) => {
                order.events.send(JobEvent::Started {
                    worker: self.context.name.clone(),
                });
                self.phase = Phase::Running {
                    ledger,
                    since: Instant::now(),
                };
                if self.cancel != Cancel::NotAsked {
                    // The first one may have come before the session listened to it.
                    self.session.interrupt();
                }
            }
            (FromSession::Refused { error, .. }, Phase::Applying { .. }) => {
                let outcome = match self.cancel {
                    Cancel::NotAsked => Outcome::Refused,
                    Cancel::Asked(_) | Cancel::Moot => Outcome::Cancelled,
                };
                return Some(Ending::without_state(outcome, error));
            }
            (
                FromSession::Finished {
                    outcome,
                    error,
                    state,
                    ..
                },
                Phase::Running { ledger, since },
            ) => {
                self.usage.run_ms = since.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
                let (outcome, error) = if self.time_is_up && outcome == Outcome::Cancelled {
                    let error = notice::stopped_in_time(self.limit.unwrap_or_default(), error);
                    (Outcome::TimedOut, Some(error))
                } else {
                    (outcome, error)
                };
                return self.begin_collecting(outcome, error, state, ledger);
            }
            (
                FromSession::InputWanted {
                    prompt, password, ..
                },
                phase,
            ) => {
                self.phase = phase;
                // The question comes after what was printed before it.
                self.flush(order);
                order
                    .events
                    .send(JobEvent::InputWanted { prompt, password });
            }
            (unexpected, phase) => {
                self.phase = phase;
                tracing::warn!(
                    cell.message_id,
                    kind = kind(&unexpected),
                    "A session's shim is out of step"
                );
            }
        }
        None
    }

    fn begin_collecting(
        &mut self,
        outcome: Outcome,
        error: Option<RemoteError>,
        state: Snapshot,
        ledger: Ledger,
    ) -> Option<Ending> {
        let base = after_apply(self.base);
        if state.messages != base.messages {
            let error = notice::session_failed("The session counted its messages differently");
            return Some(Ending::without_state(Outcome::WorkerLost, error));
        }
        let changes = Changes {
            kernel: self.session.kernel().as_raw(),
            base,
            snapshot: state,
            ledger,
        };
        let collecting = send_home(self.context.lane.clone(), self.way.clone(), changes);
        let memory = self.memory();
        self.phase = Phase::Collecting {
            outcome,
            error,
            // The session waits meanwhile: what it holds is what the cell left.
            collected: Box::pin(async move { tokio::join!(collecting, memory) }),
        };
        None
    }

    async fn on_collected(
        &mut self,
        (result, memory_bytes): Collected,
        cell: &Cell,
    ) -> Option<Ending> {
        let Phase::Collecting { outcome, error, .. } =
            std::mem::replace(&mut self.phase, Phase::Over)
        else {
            return None;
        };
        let (state, ledger) = match result {
            Ok(collected) => collected,
            Err(error) => {
                tracing::warn!(%error, "State could not be collected");
                let error = notice::state_lost(&error);
                return Some(Ending::without_state(Outcome::WorkerLost, error));
            }
        };
        let bytes = state_bytes(&state);
        if bytes > LARGEST_STATE_BYTES {
            let error = notice::state_too_large(bytes);
            return Some(Ending::without_state(Outcome::WorkerLost, error));
        }
        if let Some(ending) = self.on_memory(memory_bytes) {
            return Some(ending);
        }
        self.phase = Phase::Closing {
            ending: Ending {
                outcome,
                error,
                state: Some(state),
                usage: Usage::default(),
            },
            ledger,
        };
        self.cancel = Cancel::Moot;
        self.deadline = Some(Instant::now() + PATIENCE);
        let message_id = cell.message_id.clone();
        self.answer(ToSession::Released { message_id }).await;
        self.close()
    }

    /// The ending, once the kernel has said its last.
    fn close(&mut self) -> Option<Ending> {
        if !self.closing.is_complete() {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Closing { ending, ledger } => {
                self.session.held = Some(Held {
                    version: after_cell(self.base),
                    ledger,
                });
                Some(ending)
            }
            phase => {
                self.phase = phase;
                None
            }
        }
    }

    /// A connection that broke is seen when the session is listened to.
    async fn answer(&mut self, message: ToSession) {
        if let Err(error) = self.session.shim.send(&message).await {
            tracing::warn!(%error, "A session's shim takes no messages");
        }
    }

    fn on_cancelled(&mut self) {
        self.cancel = Cancel::Asked(Instant::now() + self.context.config.cancel_grace);
        if matches!(self.phase, Phase::Applying { .. } | Phase::Running { .. }) {
            self.session.interrupt();
        }
    }

    /// How much memory the session's processes hold.
    fn memory(&self) -> impl Future<Output = Option<u64>> + Send + 'static {
        let limit = self.context.config.session_memory_bytes;
        let kernel = self.session.kernel();
        async move {
            let look = move || processes::resident_bytes(kernel, limit);
            tokio::task::spawn_blocking(look).await.ok()
        }
    }

    fn on_memory(&mut self, bytes: Option<u64>) -> Option<Ending> {
        self.memory_bytes = bytes?;
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(self.memory_bytes);
        let limit = self.context.config.session_memory_bytes?;
        (self.memory_bytes > limit).then(|| {
            let error = notice::out_of_memory(self.memory_bytes, limit);
            Ending::without_state(Outcome::OutOfMemory, error)
        })
    }

    fn on_too_late(&mut self) -> Ending {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            // All that the student needs is here; only the session is not as it should be.
            Phase::Closing { ending, .. } => {
                tracing::warn!("A session's kernel did not say that it is idle");
                ending
            }
            Phase::Applying { .. } => Ending::without_state(
                Outcome::Refused,
                notice::session_failed("The session did not run the cell"),
            ),
            _ => Ending::without_state(
                Outcome::WorkerLost,
                notice::session_failed("The session ended the cell without its state"),
            ),
        }
    }

    fn flush(&mut self, order: &Order) {
        for output in self.batcher.take(std::time::Instant::now()) {
            order.events.send(JobEvent::Output(output));
        }
    }

    /// Only a session that went the whole way holds what the notebook thinks it holds.
    fn keep_session(self, ending: &Ending) -> Option<Session> {
        (ending.state.is_some() && self.session.held.is_some()).then_some(self.session)
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Everything that IPython publishes while a cell runs, except what the notebook kernel says itself.
fn is_output(kind: &str) -> bool {
    !matches!(
        kind,
        "status"
            | "execute_input"
            | "execute_result"
            | "error"
            | "iopub_welcome"
            | "shutdown_reply"
            | "debug_event"
    )
}

fn kind(message: &FromSession) -> &'static str {
    match message {
        FromSession::Hello(_) => "hello",
        FromSession::Started { .. } => "started",
        FromSession::Refused { .. } => "refused",
        FromSession::InputWanted { .. } => "input_wanted",
        FromSession::Finished { .. } => "finished",
    }
}
