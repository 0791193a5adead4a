//! One call of the shim: from the snapshot of a `%%gpu` cell to its change being applied at home.
//!
//! Every wait here also listens to the shim, so that an interrupt works in every phase.
//!
//! **Invariant:** the state comes home whole or not at all; whatever ends a call early voids the object table on
//! both ends, and the next call starts a new one.

use std::time::Duration;

use baton_blobs::Ledger;
use baton_jupyter_link::shim::{ShimReader, ShimWriter};
use baton_link::Held;
use baton_link::frames::FrameError;
use baton_protocol::proxy::FromProxy;
use baton_protocol::shim::{FromNotebook, Hello, Run, Snapshot, ToNotebook};
use baton_protocol::{
    Cell, JobEvent, JobId, NotebookId, Outcome, Output, RemoteError, SessionId, State,
    StateVersion, Submission, Usage,
};
use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::link::{Link, News, Status, Step};
use super::moving::{self, Moving, MovingError, Outgoing, Received};
use super::naming::Naming;
use super::notice::{Line, Notice, Waiting};
use crate::relay::{ParentCell, Relay};

/// How long a cell waits for a broker that was never reached.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a cell waits for a broker that went away while the job was its business.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(60);
/// How long an interrupted cell may still bring its state home; a worker gives a session less.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);
/// How long an interrupted cell waits for a broker that does not even say that it has heard.
const CANCEL_SILENCE: Duration = Duration::from_millis(600);
const CANCEL_LOOK: Duration = Duration::from_millis(50);

pub(super) struct Journey {
    relay: Relay,
    link: Link,
    moving: Moving,
    notebook: NotebookId,
    naming: Naming,
    python: String,
    python_version: String,
    /// What the session holds; none before the first cell and after anything that went wrong.
    home: Option<Home>,
}

struct Home {
    version: StateVersion,
    ledger: Ledger,
}

pub(super) enum CallEnd {
    Done,
    /// The shim gave this call up and began another.
    Replaced(Box<Run>),
    KernelGone,
}

/// Why a call ends without a result.
enum Stop {
    Cancelled,
    Replaced(Box<Run>),
    KernelGone,
    Failed(Box<Failure>),
    Shim(FrameError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Self {
        Self::Shim(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

struct Finished {
    outcome: Outcome,
    error: Option<RemoteError>,
    state: Option<State>,
    usage: Usage,
}

/// What all phases of one call share.
struct Call<'a> {
    job: JobId,
    parent: ParentCell,
    captured: bool,
    number: u64,
    began: Instant,
    notice: Notice,
    worker: Option<String>,
    /// What workers on this machine may fetch, as long as the call lasts.
    held: Option<Held>,
    reader: &'a mut ShimReader,
    writer: &'a mut ShimWriter,
}

impl Journey {
    pub(super) fn new(relay: Relay, link: Link, moving: Moving, notebook: NotebookId) -> Self {
        Self {
            relay,
            link,
            moving,
            notebook,
            naming: Naming::new(),
            python: String::new(),
            python_version: String::new(),
            home: None,
        }
    }

    pub(super) fn greeted(&mut self, hello: Hello) {
        self.python = hello.python;
        self.python_version = hello.python_version;
    }

    /// The kernel's table is gone, so what the session holds is of no use.
    pub(super) fn forget_state(&mut self) {
        self.home = None;
    }

    pub(super) async fn run(
        &mut self,
        run: Run,
        reader: &mut ShimReader,
        writer: &mut ShimWriter,
    ) -> Result<CallEnd, FrameError> {
        let job = JobId::random();
        let mut call = Call {
            job,
            parent: ParentCell {
                header: Bytes::from(run.parent_header.clone().into_vec()),
                message_id: run.message_id.clone(),
                silent: run.silent,
            },
            captured: run.captured,
            number: run.call,
            began: Instant::now(),
            notice: Notice::new(format!("baton-{job}"), run.quiet || run.silent),
            worker: None,
            held: None,
            reader,
            writer,
        };
        let result = self.travel(&mut call, run).await;
        let stop = match result {
            Ok(()) => return Ok(CallEnd::Done),
            Err(stop) => stop,
        };
        self.home = None;
        self.link.abandon(job).await;
        match stop {
            Stop::Cancelled => {
                self.put_out(&mut call, |notice, now| notice.fails(now));
                let finished = ToNotebook::Finished {
                    call: call.number,
                    outcome: Outcome::Cancelled,
                    error: None,
                    delta: None,
                };
                call.writer.send(&finished).await?;
                Ok(CallEnd::Done)
            }
            Stop::Failed(failure) => {
                self.put_out(&mut call, |notice, now| notice.fails(now));
                tracing::warn!(job.id = %job, error = %failure.error.value, "A %%gpu cell did not run");
                let failed = ToNotebook::Failed {
                    call: call.number,
                    outcome: failure.outcome,
                    error: failure.error,
                };
                call.writer.send(&failed).await?;
                Ok(CallEnd::Done)
            }
            Stop::Replaced(run) => Ok(CallEnd::Replaced(run)),
            Stop::KernelGone => Ok(CallEnd::KernelGone),
            Stop::Shim(error) => Err(error),
        }
    }

    async fn travel(&mut self, call: &mut Call<'_>, run: Run) -> Result<(), Stop> {
        self.wait_for_broker(call).await?;
        let cell = self.cell(&run);
        let cell_key = Some(self.naming.cell_key(&run.code, &self.link.status()));
        let priority = run.priority;
        let state = self.send_state(call, run.state).await?;
        self.link
            .submit(Submission {
                job: call.job,
                notebook: self.notebook,
                notebook_name: self.naming.notebook.clone(),
                cell_key,
                priority,
                cell,
                state,
            })
            .await;
        let finished = self.follow(call).await?;
        self.bring_home(call, finished).await
    }

    async fn wait_for_broker(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        self.link.wake().await;
        loop {
            let reason = match self.link.status() {
                Status::Up(_) => return Ok(()),
                Status::Refused(obstacle) => {
                    return Err(Failure::refused(&obstacle, call.job).into());
                }
                Status::Down { reason } => reason,
            };
            if call.now() > CONNECT_PATIENCE {
                return Err(Failure::no_answer(reason.as_deref(), call.job).into());
            }
            let look = call.notice.next_look(call.now());
            tokio::select! {
                () = self.link.status_changed() => {}
                () = tokio::time::sleep(look) => {
                    self.put_out(call, |notice, now| notice.look(now, None));
                }
                stop = call.stopped() => return Err(stop),
            }
        }
    }

    fn cell(&self, run: &Run) -> Cell {
        Cell {
            code: run.code.clone(),
            message_id: run.message_id.clone(),
            execution_count: run.execution_count,
            silent: run.silent,
            timeout_ms: run.timeout_ms,
            longest_timeout_ms: None,
            allow_stdin: run.allow_stdin,
            python: self.python.clone(),
            python_version: self.python_version.clone(),
            folder: run.folder.clone(),
        }
    }

    /// Brings what the session lacks to where its worker can have it, and tells the shim that its memory was read.
    async fn send_state(&mut self, call: &mut Call<'_>, snapshot: Snapshot) -> Result<State, Stop> {
        call.notice.waits(Waiting::Moving);
        let mut snapshot = snapshot;
        let home = loop {
            match self.home.take() {
                _ if snapshot.messages == 0 => break Home::fresh(),
                Some(home) if home.version.messages == snapshot.messages => break home,
                _ => snapshot = call.whole_state().await?,
            }
        };
        let Status::Up(lanes) = self.link.status() else {
            return Err(Failure::no_answer(None, call.job).into());
        };
        let cancel = CancellationToken::new();
        let outgoing = Outgoing {
            base: home.version,
            snapshot,
            ledger: home.ledger,
        };
        let sending = self.moving.send(outgoing, &lanes, &cancel);
        tokio::pin!(sending);
        let mut stop = None;
        let sent = loop {
            let look = call.notice.next_look(call.now());
            tokio::select! {
                sent = &mut sending => break sent,
                () = tokio::time::sleep(look) => {
                    self.put_out(call, |notice, now| notice.look(now, None));
                }
                stopped = call.stopped(), if stop.is_none() => {
                    stop = Some(stopped);
                    cancel.cancel();
                }
            }
        };
        match (sent, stop) {
            (_, Some(stop)) => Err(stop),
            (Err(error), None) => Err(Failure::moving(&error, call.job).into()),
            (Ok(sent), None) => {
                self.home = Some(Home {
                    version: home.version,
                    ledger: sent.ledger,
                });
                call.held = sent.held;
                let released = ToNotebook::Released { call: call.number };
                call.writer.send(&released).await?;
                Ok(sent.state)
            }
        }
    }

    /// From the submission to the job's last event.
    async fn follow(&mut self, call: &mut Call<'_>) -> Result<Finished, Stop> {
        let mut cancelled: Option<(Instant, Duration)> = None;
        let mut down_since: Option<Instant> = None;
        call.notice.waits(Waiting::Starting);
        loop {
            let look = match cancelled {
                Some(_) => CANCEL_LOOK,
                None => call.notice.next_look(call.now()),
            };
            tokio::select! {
                step = self.link.next_of(call.job) => match step {
                    Step::News(News::Cancelling) => {
                        if let Some((_, patience)) = &mut cancelled {
                            *patience = CANCEL_PATIENCE;
                        }
                    }
                    Step::News(News::Lost) => return Err(Failure::job_lost(call.job).into()),
                    Step::News(News::Place(place)) => {
                        let since = call.now();
                        call.notice.waits(Waiting::Queued { place, since });
                    }
                    Step::News(News::Event(event)) => match *event {
                        JobEvent::Finished { outcome, error, state, usage } => {
                            return Ok(Finished { outcome, error, state, usage });
                        }
                        event => self.pass_on(call, event).await?,
                    },
                    Step::Status(Status::Up(_)) => down_since = None,
                    Step::Status(Status::Refused(obstacle)) => {
                        return Err(Failure::refused(&obstacle, call.job).into());
                    }
                    Step::Status(Status::Down { .. }) => {
                        down_since.get_or_insert_with(Instant::now);
                        call.notice.waits(Waiting::Connecting);
                    }
                },
                message = call.reader.receive() => match message? {
                    Some(FromNotebook::State { call: number, state }) if number == call.number => {
                        let state = self.send_state(call, state).await?;
                        self.link.send(FromProxy::State { job: call.job, state }).await;
                    }
                    Some(FromNotebook::Input { call: number, value }) if number == call.number => {
                        self.link.send(FromProxy::Input { job: call.job, value }).await;
                    }
                    Some(FromNotebook::Cancel { call: number }) if number == call.number => {
                        if down_since.is_some() {
                            return Err(Stop::Cancelled);
                        }
                        self.link.send(FromProxy::Cancel { job: call.job }).await;
                        cancelled.get_or_insert_with(|| (Instant::now(), CANCEL_SILENCE));
                    }
                    other => if let Some(stop) = call.stop_of(other) {
                        return Err(stop);
                    },
                },
                () = tokio::time::sleep(look) => {
                    let worker = call.worker.clone();
                    self.put_out(call, |notice, now| notice.look(now, worker.as_deref()));
                }
            }
            if cancelled.is_some_and(|(since, patience)| since.elapsed() > patience) {
                return Err(Stop::Cancelled);
            }
            if down_since.is_some_and(|since| since.elapsed() > RECONNECT_PATIENCE) {
                return Err(Failure::no_answer(None, call.job).into());
            }
        }
    }

    async fn pass_on(&mut self, call: &mut Call<'_>, event: JobEvent) -> Result<(), Stop> {
        let number = call.number;
        match event {
            JobEvent::Assigned { worker, timeout_ms } => {
                call.notice.waits(Waiting::Starting);
                call.notice.limit(timeout_ms);
                call.worker = Some(worker);
            }
            JobEvent::StateWanted {} | JobEvent::BytesWanted {} => {
                if matches!(event, JobEvent::BytesWanted {}) {
                    self.moving.use_chunks();
                }
                self.home = None;
                let wanted = ToNotebook::StateWanted { call: number };
                call.writer.send(&wanted).await?;
            }
            JobEvent::Started { worker } => {
                call.notice.starts(call.now());
                call.worker = Some(worker);
            }
            JobEvent::Output(output) if call.captured => {
                let publish = ToNotebook::Publish {
                    call: number,
                    output,
                };
                call.writer.send(&publish).await?;
            }
            JobEvent::Output(output) => self.inject(call, &output),
            JobEvent::InputWanted { prompt, password } => {
                let wanted = ToNotebook::InputWanted {
                    call: number,
                    prompt,
                    password,
                };
                call.writer.send(&wanted).await?;
            }
            JobEvent::Charged(left) => call.notice.charged(left),
            JobEvent::Finished { .. } => {}
        }
        Ok(())
    }

    async fn bring_home(&mut self, call: &mut Call<'_>, finished: Finished) -> Result<(), Stop> {
        let Finished {
            outcome,
            error,
            state,
            usage,
        } = finished;
        let home = self.home.take();
        let (Some(state), Some(home)) = (state, home) else {
            return Err(match (outcome, error) {
                (Outcome::Cancelled, _) => Stop::Cancelled,
                (outcome, Some(error)) => Failure { outcome, error }.into(),
                (_, None) => Failure::job_lost(call.job).into(),
            });
        };
        let (file, delta, ledger) = self.fetch(call, state, home.ledger).await?;
        if let Some(worker) = call.worker.clone() {
            self.put_out(call, |notice, now| notice.ends(now, &worker, usage));
        }
        let message = ToNotebook::Finished {
            call: call.number,
            outcome,
            error,
            delta: Some(delta),
        };
        let file = std::os::fd::AsFd::as_fd(&file);
        call.writer.send_with_file(&message, file).await?;
        if call.applied().await? {
            self.home = Some(Home {
                version: StateVersion {
                    messages: home.version.messages + 2,
                    ..home.version
                },
                ledger,
            });
        }
        self.link.applied(call.job).await;
        Ok(())
    }

    async fn fetch(
        &mut self,
        call: &mut Call<'_>,
        state: State,
        ledger: Ledger,
    ) -> Result<Received, Stop> {
        let lanes = loop {
            match self.link.status() {
                Status::Up(lanes) => break lanes,
                Status::Refused(obstacle) => {
                    return Err(Failure::refused(&obstacle, call.job).into());
                }
                Status::Down { .. } => tokio::select! {
                    () = self.link.status_changed() => {}
                    stop = call.stopped() => return Err(stop),
                    () = tokio::time::sleep(RECONNECT_PATIENCE) => {
                        return Err(Failure::no_answer(None, call.job).into());
                    }
                },
            }
        };
        let held = call.held.take();
        let fetched = tokio::select! {
            fetched = moving::receive(state, ledger, held.as_ref(), &lanes.chunks) => fetched,
            stop = call.stopped() => return Err(stop),
        };
        fetched.map_err(|error: MovingError| Failure::result_lost(&error, call.job).into())
    }

    fn put_out(
        &self,
        call: &mut Call<'_>,
        line: impl FnOnce(&mut Notice, Duration) -> Option<Line>,
    ) {
        let now = call.now();
        if let Some(line) = line(&mut call.notice, now) {
            let content = line.content.as_bytes();
            self.relay
                .inject(&call.parent, line.kind, content, b"{}", &[]);
        }
    }

    fn inject(&self, call: &Call<'_>, output: &Output) {
        self.relay.inject(
            &call.parent,
            &output.kind,
            &output.content,
            &output.metadata,
            &output.buffers,
        );
    }
}

impl Home {
    fn fresh() -> Self {
        Self {
            version: StateVersion {
                session: SessionId::random(),
                messages: 0,
            },
            ledger: Ledger::default(),
        }
    }
}

impl Call<'_> {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The shim's new table, whole.
    async fn whole_state(&mut self) -> Result<Snapshot, Stop> {
        let wanted = ToNotebook::StateWanted { call: self.number };
        self.writer.send(&wanted).await?;
        loop {
            match self.reader.receive().await? {
                Some(FromNotebook::State { call, state }) if call == self.number => {
                    return Ok(state);
                }
                other => {
                    if let Some(stop) = self.stop_of(other) {
                        return Err(stop);
                    }
                }
            }
        }
    }

    /// Whether the shim applied the change; with no it kept everything as it was before the cell.
    async fn applied(&mut self) -> Result<bool, Stop> {
        loop {
            match self.reader.receive().await? {
                Some(FromNotebook::Applied { call, error }) if call == self.number => {
                    if let Some(error) = &error {
                        tracing::warn!(job.id = %self.job, error, "A cell's change could not be applied");
                    }
                    return Ok(error.is_none());
                }
                // Too late for an interrupt: the change is being applied.
                Some(FromNotebook::Cancel { .. }) => {}
                other => {
                    if let Some(stop) = self.stop_of(other) {
                        return Err(stop);
                    }
                }
            }
        }
    }

    /// Waits until the shim wants this call to end. Cancel safe.
    async fn stopped(&mut self) -> Stop {
        loop {
            let message = match self.reader.receive().await {
                Ok(message) => message,
                Err(error) => return Stop::Shim(error),
            };
            if let Some(stop) = self.stop_of(message) {
                return stop;
            }
        }
    }

    fn stop_of(&self, message: Option<FromNotebook>) -> Option<Stop> {
        match message {
            None => Some(Stop::KernelGone),
            Some(FromNotebook::Run(run)) => Some(Stop::Replaced(Box::new(run))),
            Some(FromNotebook::Cancel { call }) if call == self.number => Some(Stop::Cancelled),
            Some(late) => {
                tracing::debug!(?late, "A message out of turn");
                None
            }
        }
    }
}
