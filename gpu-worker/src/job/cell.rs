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
mod names;
mod speech;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_chunks::Ledger;
use baton_protocol::shim::ToSession;
use baton_protocol::{Answer, Cell, JobEvent, Outcome, RemoteError, State, StateVersion, Usage};
use baton_transport::Received;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use self::collecting::Collected;
use self::limits::Cancel;
use self::speech::send_cell;
use super::prepare::Ready;
use super::{Ending, Job};
use crate::batch::Batcher;
use crate::context::Context;
use crate::life_end::LifeEnd;
use crate::messages::{self, Limit};
use crate::questions::Answered;
use crate::session::{Session, SessionEvent};
use crate::transfer::{NotTransferred, Transport};

const MEMORY_POLL: Duration = Duration::from_millis(250);

/// How long outputs wait before the next look, while too many bytes are not acknowledged yet.
const FULL_POLL: Duration = Duration::from_millis(60);

/// How long to receive what a session has sent before its end.
const LAST_OUTPUTS: Duration = Duration::from_secs(1);

pub(crate) async fn run_cell(
    context: &Context,
    ready: Ready<'_>,
    job: &mut Job,
) -> (Ending, Option<Session>) {
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
            let error = messages::session_failed("The cell could not be sent to its session");
            Ending::without_state(Outcome::WorkerLost, error)
        }),
        () = cancel_ignored(context, job) => {
            Err(Ending::without_state(Outcome::Cancelled, messages::cancelled()))
        }
        () = context.stopping.cancelled() => {
            Err(stopped(context))
        }
    };
    // The session has received the file.
    drop(state.file);
    if let Err(ending) = begun {
        return (ending, None);
    }
    let mut run = Run {
        context,
        session,
        version: base.after_message(),
        transport,
        inputs: FuturesUnordered::new(),
        names: None,
        question: None,
        phase: Phase::Applying {
            ledger: state.ledger,
        },
        batcher: Batcher::default(),
        usage: Usage::default(),
        cancel: Cancel::NotAsked,
        ended: None,
        limit: cell.timeout_ms.map(|time| Limit {
            time: Duration::from_millis(time),
            longest: cell.longest_timeout_ms.map(Duration::from_millis),
        }),
        time_is_up: false,
    };
    run.warn(std::mem::take(&mut job.warnings));
    run.announce_limit(cell.gpu_memory_bytes);
    let mut ending = run.until_end(job, &cell).await;
    let can_continue = run.end_gpu_use(&mut ending, cell.kind).await;
    run.flush(job);
    ending.finished.usage = run.usage;
    let session = run.keep_session(&ending).filter(|_| can_continue);
    (ending, session)
}

fn stopped(context: &Context) -> Ending {
    let is_ending = context.end.as_ref().is_some_and(LifeEnd::is_ending);
    let why = match is_ending {
        true => messages::time_is_over(),
        false => messages::shutting_down(),
    };
    Ending::without_state(Outcome::WorkerLost, why)
}

struct Run<'context> {
    context: &'context Context,
    session: Session,
    /// The version that the session holds once it has applied what it was sent.
    version: StateVersion,
    transport: Transport,
    /// Calls of `input()` that wait for the student, each with the session's own number.
    inputs: FuturesUnordered<BoxFuture<'context, (u64, Option<String>)>>,
    /// The cell asked for names that it was not given, and has no answer yet.
    names: Option<Answered>,
    /// A question of the cell that waits, like the outputs before it, until the broker accepts more.
    question: Option<Question>,
    phase: Phase<'context>,
    batcher: Batcher,
    usage: Usage,
    cancel: Cancel,
    /// When the cell's code ended.
    ended: Option<Instant>,
    /// How long the cell may run.
    limit: Option<Limit>,
    /// The time limit interrupted the cell, not the student.
    time_is_up: bool,
}

enum Phase<'context> {
    /// The session applies the state, and then waits until it may begin.
    Applying {
        ledger: Ledger,
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

/// What the cell asks its notebook.
enum Question {
    Input {
        /// The session's own number of the question.
        number: u64,
        prompt: String,
        password: bool,
    },
    Names(Vec<String>),
}

enum Event {
    Session(SessionEvent),
    /// The broker has stored `Started`.
    Permitted,
    Input((u64, Option<String>)),
    Cancelled,
    Stopping,
    /// `None`: the notebook cannot answer.
    Names(Option<State>),
    Fetched(Result<Received, NotTransferred>),
    Collected(Collected),
    MemoryDue,
    OutputDue,
    CancelIgnored,
    TimeIsUp,
}

impl Run<'_> {
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
        let output_due = self.output_due(job);
        let must_wait = self.session_must_wait();
        let (ignored_at, time_is_up_at) = (self.cancel_ignored_at(), self.time_is_up_at());
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
            Some(answer) = self.inputs.next() => Event::Input(answer),
            () = job.cancelled.cancelled(), if self.cancel == Cancel::NotAsked => Event::Cancelled,
            () = self.context.stopping.cancelled() => Event::Stopping,
            names = names::answer(&mut self.names) => Event::Names(names),
            event = moved => event,
            () = at(output_due) => Event::OutputDue,
            () = at(ignored_at) => Event::CancelIgnored,
            () = at(time_is_up_at) => Event::TimeIsUp,
            _ = memory.tick() => Event::MemoryDue,
        }
    }

    /// Whether the session's messages must stay unread: nothing of what is here may be left out. (While it applies the
    /// state, no output is sent. So it would wait for ever, and outputs are left out instead.)
    fn session_must_wait(&self) -> bool {
        let is_full = self.batcher.is_full() || self.question.is_some();
        is_full && !matches!(self.phase, Phase::Applying { .. })
    }

    fn output_due(&self, job: &Job) -> Option<Instant> {
        // Output of the session while it applies the state is shown with the cell's own output.
        if matches!(self.phase, Phase::Applying { .. }) {
            return None;
        }
        let now = Instant::now();
        let due = match self.question {
            Some(_) => now,
            None => Instant::from_std(self.batcher.due(now.into_std())?),
        };
        Some(if job.events.is_full() {
            now + FULL_POLL
        } else {
            due
        })
    }

    /// Returns the ending if this was the last event.
    async fn on_event(&mut self, event: Event, job: &mut Job, cell: &Cell) -> Option<Ending> {
        match event {
            Event::Session(SessionEvent::Said(message)) => {
                return self.on_said(message, job, cell).await;
            }
            Event::Session(SessionEvent::Ended(death)) => {
                self.session.end_processes();
                let deadline = Instant::now() + LAST_OUTPUTS;
                while let Some(output) = self.session.remaining(deadline).await {
                    self.batcher.push(output);
                }
                if let Some(full) = death.full_disk {
                    let error = messages::disk_full(full.used_bytes, full.limit_bytes);
                    return Some(Ending::without_state(Outcome::WorkerLost, error));
                }
                tracing::warn!(?death.status, "A session died while it ran a cell");
                let peak_bytes = self.usage.peak_memory_bytes;
                if let Some(limit) = death.exceeded_memory_bytes {
                    let error = messages::out_of_memory(peak_bytes.max(limit), limit);
                    return Some(Ending::without_state(Outcome::OutOfMemory, error));
                }
                if let Some(bytes) = death.refused_bytes {
                    let error = messages::message_too_large(bytes);
                    return Some(Ending::without_state(Outcome::WorkerLost, error));
                }
                let error = messages::session_died(death.status, &death.last_lines, peak_bytes);
                return Some(Ending::without_state(Outcome::WorkerLost, error));
            }
            Event::Permitted => {
                let message_id = cell.message_id.clone();
                self.session.answer(ToSession::Begin { message_id }).await;
            }
            Event::Input((question, value)) => {
                self.session
                    .answer(ToSession::Input { question, value })
                    .await;
            }
            Event::Cancelled => self.on_cancelled(),
            Event::TimeIsUp => {
                self.time_is_up = true;
                self.on_cancelled();
            }
            Event::CancelIgnored => return Some(self.on_cancel_ignored()),
            Event::Stopping => {
                return Some(stopped(self.context));
            }
            Event::Names(names) => self.on_names(names, cell).await,
            Event::Fetched(fetched) => return self.on_fetched(fetched, cell).await,
            Event::Collected(collected) => return self.on_collected(collected, job, cell).await,
            Event::MemoryDue => {
                let bytes = self.memory().await;
                let known = &job.events.memory_bytes;
                known.store(bytes.unwrap_or_default(), Ordering::Relaxed);
                return self.on_memory(bytes);
            }
            Event::OutputDue if job.events.is_full() => {}
            Event::OutputDue => self.flush(job),
        }
        None
    }

    fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            self.batcher.push(messages::warning(&warning));
        }
    }

    /// The question must appear after what was printed before it.
    fn ask(&mut self, question: Question, job: &Job) {
        self.question = Some(question);
        if !job.events.is_full() {
            self.flush(job);
        }
    }

    fn flush(&mut self, job: &Job) {
        for output in self.batcher.take(std::time::Instant::now()) {
            job.events.send(JobEvent::Output(output));
        }
        if let Some(question) = self.question.take() {
            self.send_question(question, job);
        }
    }

    fn send_question(&mut self, question: Question, job: &Job) {
        match question {
            Question::Input {
                number,
                prompt,
                password,
            } => {
                let answered = job.questions.ask(|question| JobEvent::InputWanted {
                    question,
                    prompt,
                    password,
                });
                self.inputs.push(Box::pin(async move {
                    match answered.await {
                        Ok(Answer::Input(value)) => (number, value),
                        _ => (number, None),
                    }
                }));
            }
            Question::Names(names) => {
                let ask = |question| JobEvent::NamesWanted { question, names };
                self.names = Some(job.questions.ask(ask));
            }
        }
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

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
