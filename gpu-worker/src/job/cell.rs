//! Runs one cell: sends it to the session, watches it, passes on its output, and collects its state.
//!
//! ```text
//! applying ──Started──> running ──Finished──> collecting ──collected──> the end
//! ```
//!
//! The worker sends the cell to the session and `Started` to the broker at the same time. The session begins the
//! cell when it has applied the state and the broker has stored `Started`. A worker that is disconnected before
//! that waits; meanwhile the broker may give the job to another worker, and then revokes it here.
//!
//! In every phase, the death of the session, too much memory, an ignored cancel and the end of the worker lead to
//! an ending without state.
//!
//! **Invariant:** the session receives `Begin` only when the broker has stored `Started`. The last event follows
//! every output of the cell.

mod collecting;
mod gpu_use;
mod limits;
mod outputs;

use self::{
    collecting::Collected,
    limits::{Limits, stopped},
    outputs::{Answered, Outputs, Question},
};
use super::{
    Ended, Ending, Job,
    deferred_state::{DeferredChannels, DeferredState},
    prepare::Ready,
};
use crate::{
    context::Context,
    deadline::at,
    gpu, messages, processes,
    session::{Death, Session, SessionEvent, TableState},
    transfer::{NotTransferred, Transport, receive_more},
};
use baton_chunks::Ledger;
use baton_protocol::{
    Cell, Finished, JobEvent, JobKind, Outcome, RemoteError, State, StateVersion, Usage,
    shim::{Delta, FromSession, Snapshot, ToSession},
};
use baton_transport::{Changes, Received, frames::FrameError};
use futures_util::future::BoxFuture;
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::Ordering,
    time::Duration,
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

const MEMORY_POLL: Duration = Duration::from_millis(250);

/// How long to receive what a session has sent before its end.
const LAST_OUTPUTS: Duration = Duration::from_secs(1);

pub(crate) async fn run_cell(context: &Context, ready: Ready<'_>, job: &mut Job) -> Ended {
    let Ready {
        mut session,
        base,
        state,
        transport,
        _slot,
    } = ready;
    let cell = job.submission.cell.clone();
    job.events.send(JobEvent::Started {
        worker: String::new(),
    });
    if let Some(gpu) = session.gpu() {
        gpu.limit(cell.gpu_memory_bytes).await;
    }
    let begun = tokio::select! {
        begun = send_cell(&mut session, &cell, state.delta, state.file.as_fd()) => begun.map_err(|error| {
            tracing::warn!(%error, "Failed to send a session its cell");
            Ending::without_state(Outcome::WorkerLost, messages::not_sent(cell.kind))
        }),
        () = cancel_ignored(context, job) => {
            Err(Ending::without_state(Outcome::Cancelled, messages::cancelled(cell.kind)))
        }
        () = context.stopping.cancelled() => {
            Err(stopped(context, cell.kind))
        }
    };
    // The session has received the file.
    drop(state.file);
    if let Err(ending) = begun {
        return Ended::without_session(ending);
    }
    let mut run = RunningCell {
        context,
        kind: cell.kind,
        session,
        version: base.after_message(),
        transport,
        phase: Phase::Applying {
            ledger: state.ledger,
            since: None,
        },
        outputs: Outputs::default(),
        limits: Limits::new(&context.config, &cell),
        usage: Usage::default(),
    };
    run.outputs.warn(std::mem::take(&mut job.warnings));
    run.outputs.warn(gpu_use::not_enforced(&run.session, &cell));
    let mut ending = run.until_end(job, &cell).await;
    let gpu_use = gpu_use::end(&run.session, cell.kind, &mut ending).await;
    run.outputs.warn(gpu_use.warnings);
    run.outputs.flush(job);
    run.usage.gpu = gpu_use.usage;
    ending.finished.usage = run.usage;
    let session = run.keep_session(&ending).filter(|_| gpu_use.can_continue);
    Ended { ending, session }
}

async fn send_cell(
    session: &mut Session,
    cell: &Cell,
    delta: Delta,
    file: BorrowedFd<'_>,
) -> Result<(), FrameError> {
    let run = ToSession::Run {
        message_id: cell.message_id.clone(),
        code: cell.code.clone(),
        silent: cell.silent,
        allow_stdin: cell.allow_stdin,
        execution_count: cell.execution_count,
        delta,
    };
    session.shim.send_with_file(&run, file).await
}

struct RunningCell<'context> {
    context: &'context Context,
    kind: JobKind,
    session: Session,
    /// The version that the session holds once it has applied what it was sent.
    version: StateVersion,
    transport: Transport,
    phase: Phase<'context>,
    outputs: Outputs,
    limits: Limits,
    usage: Usage,
}

enum Phase<'context> {
    /// The session applies the state, and then waits until it may begin.
    Applying {
        ledger: Ledger,
        /// When it was allowed to begin. From then on its time counts, because applying a state runs code of the
        /// student's classes.
        since: Option<Instant>,
    },
    Running {
        ledger: Ledger,
        since: Instant,
    },
    /// The cell waits for names of the notebook, which are being transferred.
    Fetching {
        since: Instant,
        fetched: BoxFuture<'context, Result<Received, NotTransferred>>,
    },
    /// The cell has ended; its changes are read and uploaded.
    Collecting {
        outcome: Outcome,
        error: Option<RemoteError>,
        deferred_bytes: u64,
        collected: BoxFuture<'static, Collected>,
    },
    /// Between two phases, and at the end.
    Over,
}

/// What the session reports when its cell has ended.
struct CellEnd {
    outcome: Outcome,
    error: Option<RemoteError>,
    /// What the cell changed.
    snapshot: Snapshot,
    /// What the session and the notebook held before.
    ledger: Ledger,
    deferred_bytes: u64,
}

enum Event {
    Session(SessionEvent),
    /// The broker has stored `Started`.
    Permitted,
    Answered(Answered),
    Cancelled,
    Stopping,
    Fetched(Result<Received, NotTransferred>),
    Collected(Collected),
    MemoryDue,
    OutputDue,
    CancelIgnored,
    TimeIsUp,
}

impl RunningCell<'_> {
    async fn until_end(&mut self, job: &mut Job, cell: &Cell) -> Ending {
        let mut memory = interval_at(Instant::now() + MEMORY_POLL, MEMORY_POLL);
        memory.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = self.next_event(job, &mut memory).await;
            if let Some(ending) = self.on_event(event, job, cell).await {
                return ending;
            }
        }
    }

    async fn next_event(&mut self, job: &mut Job, memory: &mut Interval) -> Event {
        let applies = matches!(self.phase, Phase::Applying { .. });
        // Output of the session while it applies the state is shown with the cell's own output.
        let output_due = self.outputs.due(job).filter(|_| !applies);
        // Nothing in a full buffer may be left out, so the session's messages stay unread, and the session waits in its
        // next write. While it applies the state, no output is sent, so that wait would never end: surplus output is
        // left out then.
        let must_wait = self.outputs.is_full() && !applies;
        let ignored_at = match self.phase {
            // An interrupted cell returns its changes, and that may take as long as for any other cell.
            Phase::Collecting { .. } => None,
            _ => self.limits.cancel_ignored_at(),
        };
        let time_is_up_at = match self.phase {
            Phase::Applying {
                since: Some(since), ..
            }
            | Phase::Running { since, .. }
            | Phase::Fetching { since, .. } => self.limits.time_is_up_at(since),
            _ => None,
        };
        let moved = async {
            match &mut self.phase {
                Phase::Fetching { fetched, .. } => Event::Fetched(fetched.await),
                Phase::Collecting { collected, .. } => Event::Collected(collected.await),
                _ => std::future::pending().await,
            }
        };
        let session = async {
            match must_wait {
                true => SessionEvent::Ended(self.session.ended().await),
                false => self.session.next().await,
            }
        };
        tokio::select! {
            event = session => Event::Session(event),
            Ok(()) = job.permission.changed() => Event::Permitted,
            answered = self.outputs.answered() => Event::Answered(answered),
            () = job.cancelled.cancelled(), if !self.limits.is_cancelled() => Event::Cancelled,
            () = self.context.stopping.cancelled() => Event::Stopping,
            event = moved => event,
            () = at(output_due) => Event::OutputDue,
            () = at(ignored_at) => Event::CancelIgnored,
            () = at(time_is_up_at) => Event::TimeIsUp,
            _ = memory.tick() => Event::MemoryDue,
        }
    }

    /// Returns the ending if this was the last event.
    async fn on_event(&mut self, event: Event, job: &mut Job, cell: &Cell) -> Option<Ending> {
        match event {
            Event::Session(SessionEvent::Message(message)) => {
                return self.on_message(message, job, cell);
            }
            Event::Session(SessionEvent::Ended(death)) => return Some(self.on_death(death).await),
            Event::Permitted => {
                if let Phase::Applying { since, .. } = &mut self.phase {
                    *since = Some(Instant::now());
                }
                let message_id = cell.message_id.clone();
                self.session.answer(ToSession::Begin { message_id }).await;
            }
            Event::Answered(Answered::Input { question, value }) => {
                let input = ToSession::Input { question, value };
                self.session.answer(input).await;
            }
            Event::Answered(Answered::Names(names)) => self.on_names(names, cell).await,
            Event::Fetched(fetched) => return self.on_fetched(fetched, cell).await,
            Event::Collected(collected) => return self.on_collected(collected, job, cell),
            Event::Cancelled => {
                self.limits.cancel();
                self.interrupt();
            }
            Event::TimeIsUp => {
                self.limits.end_time();
                self.interrupt();
            }
            Event::CancelIgnored => return Some(self.limits.ending_of_ignored_cancel()),
            Event::Stopping => return Some(stopped(self.context, self.kind)),
            Event::MemoryDue => {
                self.limits.wait_for_gpu(&self.session).await;
                let bytes = limits::memory(&self.session, self.context).await;
                let known = &job.events.memory_bytes;
                known.store(bytes.unwrap_or_default(), Ordering::Relaxed);
                return self.on_memory(bytes);
            }
            Event::OutputDue if job.events.is_full() => {}
            Event::OutputDue => self.outputs.flush(job),
        }
        None
    }

    fn on_message(&mut self, message: FromSession, job: &Job, cell: &Cell) -> Option<Ending> {
        match message {
            FromSession::Ended { .. } => self.limits.on_code_ended(),
            FromSession::Published { output } => self.outputs.push(output),
            FromSession::InputWanted {
                question: number,
                prompt,
                password,
                ..
            } => {
                let asked = Question::Input {
                    number,
                    prompt,
                    password,
                };
                self.outputs.ask(asked, job);
            }
            FromSession::NamesWanted { names, .. }
                if matches!(self.phase, Phase::Running { .. }) =>
            {
                self.outputs.ask(Question::Names(names), job);
            }
            message => return self.on_step(message, cell),
        }
        None
    }

    /// A message that ends a phase.
    fn on_step(&mut self, message: FromSession, cell: &Cell) -> Option<Ending> {
        match (message, std::mem::replace(&mut self.phase, Phase::Over)) {
            (FromSession::Started { .. }, Phase::Applying { ledger, since }) => {
                self.on_started(ledger, since);
                None
            }
            (
                FromSession::Refused { error, .. },
                phase @ (Phase::Applying { .. } | Phase::Running { .. }),
            ) => Some(self.on_refused(error, &phase)),
            (
                FromSession::Finished {
                    outcome,
                    error,
                    state,
                    deferred_bytes,
                    keeps,
                    ..
                },
                Phase::Running { ledger, since },
            ) => {
                self.session.keeps = keeps;
                self.ran_since(since);
                self.on_finished(CellEnd {
                    outcome,
                    error,
                    snapshot: state,
                    ledger,
                    deferred_bytes,
                })
            }
            (unexpected, phase) => {
                self.phase = phase;
                let kind = unexpected.kind();
                tracing::warn!(cell.message_id, kind, "A session is out of step");
                None
            }
        }
    }

    fn on_started(&mut self, ledger: Ledger, since: Option<Instant>) {
        gpu_use::report(&self.session, gpu::Cell::Started);
        let since = since.unwrap_or_else(Instant::now);
        self.phase = Phase::Running { ledger, since };
        if self.limits.is_cancelled() {
            // The first interrupt may have arrived before the session could handle it.
            self.session.interrupt();
        }
    }

    fn on_refused(&mut self, error: RemoteError, phase: &Phase<'_>) -> Ending {
        if let Phase::Applying {
            since: Some(since), ..
        }
        | Phase::Running { since, .. } = phase
        {
            self.ran_since(*since);
        }
        if let Some(ending) = self.limits.ending_in_time() {
            return ending;
        }
        let outcome = match self.limits.is_cancelled() {
            false => Outcome::Refused,
            true => Outcome::Cancelled,
        };
        Ending::without_state(outcome, error)
    }

    /// Begins to collect what the cell left, unless it used too much memory.
    fn on_finished(&mut self, end: CellEnd) -> Option<Ending> {
        gpu_use::report(&self.session, gpu::Cell::Ended);
        let bytes = processes::resident_of(self.session.kernel());
        if let Some(ending) = self.on_memory(Some(bytes)) {
            return Some(ending);
        }
        let (outcome, error) = self.limits.outcome(end.outcome, end.error);
        let changes = Changes {
            kernel: self.session.kernel().as_raw(),
            base: self.version,
            snapshot: end.snapshot,
            ledger: end.ledger,
        };
        match collecting::begin(
            self.context,
            self.kind,
            &mut self.session,
            &self.transport,
            changes,
        ) {
            Ok(collected) => {
                self.phase = Phase::Collecting {
                    outcome,
                    error,
                    deferred_bytes: end.deferred_bytes,
                    collected,
                };
                None
            }
            Err(error) => Some(Ending::without_state(Outcome::WorkerLost, error)),
        }
    }

    async fn on_death(&mut self, death: Death) -> Ending {
        self.session.end_processes();
        let deadline = Instant::now() + LAST_OUTPUTS;
        while let Some(output) = self.session.remaining(deadline).await {
            self.outputs.push(output);
        }
        if let Some(full) = death.full_disk {
            let error = messages::disk_full(self.kind, full.used_bytes, full.limit_bytes);
            return Ending::without_state(Outcome::WorkerLost, error);
        }
        tracing::warn!(?death.status, "A session died while it ran a cell");
        let peak_bytes = self.usage.peak_memory_bytes;
        if let Some(limit) = death.exceeded_memory_bytes {
            let error = messages::out_of_memory(self.kind, peak_bytes.max(limit), limit);
            return Ending::without_state(Outcome::OutOfMemory, error);
        }
        let error = match death.refused_bytes {
            Some(bytes) => messages::message_too_large(self.kind, bytes),
            None => messages::session_died(self.kind, death.status, &death.last_lines, peak_bytes),
        };
        Ending::without_state(Outcome::WorkerLost, error)
    }

    /// Names that the cell looked up and was not given. Until they are here, the cell waits, or one of its threads.
    async fn on_names(&mut self, names: Option<State>, cell: &Cell) {
        match (names, &mut self.phase) {
            (Some(state), Phase::Running { ledger, since }) if state.base() == self.version => {
                let ledger = std::mem::take(ledger);
                self.phase = Phase::Fetching {
                    since: *since,
                    fetched: Box::pin(receive_more(&self.context.access, state, ledger)),
                };
            }
            (_, Phase::Running { .. }) => {
                let message_id = cell.message_id.clone();
                self.session.answer(ToSession::NoNames { message_id }).await;
            }
            _ => {}
        }
    }

    async fn on_fetched(
        &mut self,
        fetched: Result<Received, NotTransferred>,
        cell: &Cell,
    ) -> Option<Ending> {
        let Phase::Fetching { since, .. } = self.phase else {
            return None;
        };
        let Received {
            file,
            delta,
            ledger,
        } = match fetched {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, "Failed to fetch names that a cell looked up");
                let error = messages::state_lost(self.kind, &error);
                return Some(Ending::without_state(Outcome::WorkerLost, error));
            }
        };
        self.phase = Phase::Running { ledger, since };
        self.version = self.version.after_message();
        let names = ToSession::Names {
            message_id: cell.message_id.clone(),
            delta,
        };
        // A broken connection is noticed at the next wait for the session.
        if let Err(error) = self.session.shim.send_with_file(&names, file.as_fd()).await {
            tracing::warn!(%error, "Failed to send a session the names that it looked up");
        }
        None
    }

    fn on_collected(&mut self, collected: Collected, job: &Job, cell: &Cell) -> Option<Ending> {
        let Phase::Collecting {
            outcome,
            error,
            deferred_bytes,
            ..
        } = std::mem::replace(&mut self.phase, Phase::Over)
        else {
            return None;
        };
        let (state, ledger, files) = match collecting::all_of(self.kind, collected) {
            Ok(collected) => collected,
            Err(error) => return Some(Ending::without_state(Outcome::WorkerLost, error)),
        };
        self.outputs.warn(files.notes);
        let (outcome, error) = match files.left {
            left if left > 0 && outcome == Outcome::Ok && cell.kind.is_program() => {
                (Outcome::Error, Some(messages::files_left(self.kind, left)))
            }
            _ => (outcome, error),
        };
        if let Some(mirror) = &mut self.session.mirror {
            mirror.after_cell();
        }
        let held = TableState {
            version: self.version.after_message(),
            ledger,
        };
        let deferred = (deferred_bytes > 0).then(|| {
            let channels = DeferredChannels {
                kind: self.kind,
                events: job.events.clone(),
                revoked: job.revoked.clone(),
                wanted: job.deferred_wanted.clone(),
            };
            let transfer = (self.context.access.clone(), self.transport.clone());
            let kernel = self.session.kernel().as_raw();
            let copied_within = self.context.copying_time(deferred_bytes);
            DeferredState::new(channels, transfer, kernel, &held, copied_within)
        });
        self.session.held = Some(held);
        Some(Ending {
            finished: Finished {
                outcome,
                error,
                state: Some(state),
                usage: Usage::default(),
                files: files.changes,
                deferred_bytes,
                salvageable: cell.kind.outlives_kernel(),
            },
            deferred,
            file_chunks: files.chunks,
            elsewhere: false,
        })
    }

    fn on_memory(&mut self, bytes: Option<u64>) -> Option<Ending> {
        let bytes = bytes?;
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(bytes);
        limits::too_much_memory(self.kind, &self.session, self.context, bytes)
    }

    fn interrupt(&mut self) {
        let listens = matches!(
            self.phase,
            Phase::Applying { .. } | Phase::Running { .. } | Phase::Fetching { .. }
        );
        if listens {
            gpu_use::report(&self.session, gpu::Cell::Stopped);
            self.session.interrupt();
        }
    }

    fn ran_since(&mut self, begin: Instant) {
        self.usage.run_ms = begin.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
    }

    /// Only a session whose whole state was collected holds what the notebook expects it to hold.
    fn keep_session(self, ending: &Ending) -> Option<Session> {
        let whole = ending.finished.state.is_some() && self.session.held.is_some();
        whole.then_some(self.session)
    }
}

/// Completes when the grace period after a cancel has passed and the session has not even received its cell.
async fn cancel_ignored(context: &Context, job: &Job) {
    job.cancelled.cancelled().await;
    tokio::time::sleep(context.config.cancel_grace).await;
}
