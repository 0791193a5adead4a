//! A `%%gpu` cell from top to bottom: snapshot in, connect, send state, submit, follow, receive state, apply.
//!
//! In: the shim's snapshot, and job events from the broker. Out: the submission and its state to
//! the broker, output to the clients, and the changed state to the shim. [`RemoteCells`] outlives
//! the cells; [`cell::RemoteCell`] is the running one. Every wait also listens to the shim, so an
//! interrupt works in every step.
//!
//! **Invariant:** the notebook gets a cell's changes completely or not at all. If a cell ends in
//! any other way, the object table is void on both sides, and the next cell starts a new one,
//! unless no session can have received the cell's state: then the table is as it was before.

mod applying;
mod attach;
mod autostart;
mod cell;
mod deferred;
mod display;
mod ending;
mod failure;
mod file_changes;
mod iopub;
mod link;
mod names;
mod naming;
mod notebook_files;
mod output_history;
mod preparing;
mod saved_states;
mod session;
mod session_state;
mod silence;
mod status_line;
mod stop;
mod transfer;
mod waits;

use self::{
    applying::receive_and_apply,
    cell::RemoteCell,
    display::Display,
    ending::EarlierKernels,
    failure::Failure,
    link::{JobUpdate, Link, Status, Step},
    naming::Naming,
    notebook_files::NotebookFiles,
    preparing::Signs,
    saved_states::SavedStates,
    session::{BetweenCells, Session},
    session_state::SessionState,
    silence::Silence,
    status_line::Waiting,
    stop::{Connection, Stop},
    transfer::Transfer,
    waits::{connect, connection, notebook_folder, on_other, whole_state},
};
use crate::config::RemoteConfig;
use baton_jupyter_wire::shim::{ShimReader, ShimWriter};
use baton_protocol::{
    Answer, CallId, Finished, JobEvent, JobKind, NotebookId, Outcome, Priority, State, Submission,
    shim::{FromNotebook, Hello, Run, Snapshot, ToNotebook},
};
use baton_transport::frames::FrameError;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub(crate) use self::attach::attach;
pub(crate) use self::saved_states::StateRequest;

/// How long a cell waits for a broker that was never reached.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// What a notebook's `%%gpu` cells share. Cells run one at a time.
pub(crate) struct RemoteCells {
    notebook: NotebookId,
    naming: Naming,
    /// The priority of all cells, unless it is the default.
    priority: Priority,
    python: String,
    python_version: String,
    link: Link,
    /// How long a submitted cell waits for a broker that is unreachable.
    patience: Duration,
    transfer: Transfer,
    files: NotebookFiles,
    display: Display,
    session: Session,
    earlier_kernels: EarlierKernels,
    /// The kind of all jobs, if it is the same for all.
    kind: Option<JobKind>,
}

pub(crate) enum CellEnd {
    Done,
    /// The shim gave up this cell and began another.
    Replaced(Box<Run>),
    KernelGone,
}

impl RemoteCells {
    /// Also returns the future that drives the connection to the broker. It ends after
    /// `RemoteCells` is dropped.
    pub(crate) fn open(config: RemoteConfig) -> (Self, impl Future<Output = ()>) {
        let notebook = NotebookId::random();
        let (link, ended, drive_link) =
            link::open(config.broker, config.course, notebook, config.patience);
        let kind = config.audience.kind_of_jobs();
        let cells = Self {
            notebook,
            naming: Naming::new(&config.audience),
            priority: config.priority,
            python: String::new(),
            python_version: String::new(),
            link,
            patience: config.patience,
            transfer: Transfer::new(config.kernel_pid, config.memory),
            files: NotebookFiles::new(config.trash),
            display: Display::new(config.audience),
            session: Session::new(ended),
            earlier_kernels: EarlierKernels::default(),
            kind,
        };
        (cells, drive_link)
    }

    pub(crate) fn on_hello(&mut self, hello: Hello) {
        self.python = hello.python;
        self.python_version = hello.python_version;
    }

    /// Waits for an event while no cell runs. Cancel safe.
    pub(crate) async fn between_cells(&mut self) -> BetweenCells {
        self.session.next_event(&mut self.link).await
    }

    /// Sends the shim what [`Self::between_cells`] has waited for.
    pub(crate) async fn on_between_cells(
        &mut self,
        event: BetweenCells,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        self.session.send(event, &self.link, writer).await
    }

    pub(crate) async fn on_deferred_applied(&mut self, call: CallId, error: Option<String>) {
        self.session.on_applied(&self.link, call, error).await;
    }

    /// The kernel's object table is gone, so the session's state is of no use.
    pub(crate) async fn forget_state(&mut self) {
        self.session.forget(&mut self.link).await;
    }

    /// Sends the shim the output of an earlier cell.
    pub(crate) async fn replay_output(
        &self,
        call: CallId,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        self.display.replay(call, writer).await
    }

    /// Answers a kernel that is about to end with the name under which to save its variables, if it should.
    pub(crate) async fn on_ending(
        &self,
        call: CallId,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        let name = ending::autosave_name(&self.link.status(), &self.naming);
        writer.send(&ToNotebook::Autosave { call, name }).await
    }

    pub(crate) fn saved_states(&mut self) -> SavedStates<'_> {
        SavedStates {
            link: &mut self.link,
            transfer: &self.transfer,
            session: &mut self.session,
            notebook: &self.naming.notebook,
        }
    }

    /// Runs one cell and tells the shim how it ended.
    pub(crate) async fn run(
        &mut self,
        run: Run,
        reader: &mut ShimReader,
        writer: &mut ShimWriter,
    ) -> Result<CellEnd, FrameError> {
        self.session.deferred.repeat();
        let kind = self.kind.unwrap_or(run.kind);
        let job = self.naming.job_of(&run.message_id, kind);
        let mut cell = RemoteCell::new(job, &run, reader, writer);
        let span = tracing::error_span!("job", job.id = %job.id);
        self.display.begin(&cell);
        let end = match self.run_steps(&mut cell, run).instrument(span).await {
            Ok(()) => Ok(CellEnd::Done),
            Err(stop) => self.on_stop(&mut cell, stop).await,
        };
        self.display.end(&mut cell).await?;
        end
    }

    async fn run_steps(&mut self, cell: &mut RemoteCell<'_>, run: Run) -> Result<(), Stop> {
        let request = cell.request(&run, &self.python, &self.python_version);
        let priority = match self.priority {
            Priority::Normal => run.priority,
            low => low,
        };
        let (mut snapshot, mut patience) = (run.state, CONNECT_PATIENCE);
        loop {
            self.link.wake().await;
            let broker = connect(cell, &mut self.link, &mut self.display, patience).await?;
            let mut request = request.clone();
            request.notebook_folder =
                notebook_folder(cell, &self.display, &mut self.files, &broker).await?;
            let cell_key = Some(self.naming.cell_key(&run.code, &self.link.status()));
            let state = self.send_state(cell, snapshot).await?;
            cell.state_may_have_arrived = true;
            self.link
                .submit(Submission {
                    job: cell.job,
                    notebook: self.notebook,
                    notebook_name: self.naming.notebook.clone(),
                    cell_key,
                    priority,
                    group: cell.group,
                    cell: request,
                    state,
                })
                .await;
            cell.release().await?;
            self.earlier_kernels.look_up(&broker, &self.naming);
            let finished = self.follow(cell).await?;
            if !cell.may_begin_again(&finished) {
                return receive_and_apply(self, cell, finished).await;
            }
            self.link.give_up(cell.begin_again(), None).await;
            cell.status_line.waits(Waiting::Notebook);
            snapshot = whole_state(cell, &self.display).await?;
            patience = self.patience;
        }
    }

    /// Sends what the session lacks to where a worker can get it. Once this returns, the shim's
    /// memory is no longer read, and [`RemoteCell::release`] tells the shim so.
    async fn send_state(
        &mut self,
        cell: &mut RemoteCell<'_>,
        mut snapshot: Snapshot,
    ) -> Result<State, Stop> {
        cell.status_line.waits(Waiting::Sending);
        let session = loop {
            match self.session.state.take() {
                _ if snapshot.messages == 0 => {
                    self.files.session_is_new(cell.kind);
                    break SessionState::new();
                }
                Some(session) if session.version.messages == snapshot.messages => break session,
                _ => snapshot = whole_state(cell, &self.display).await?,
            }
        };
        cell.session_before = Some(session.clone());
        let broker = connect(cell, &mut self.link, &mut self.display, self.patience).await?;
        let cancel = CancellationToken::new();
        let version = session.version;
        let sending = self.transfer.send(session, snapshot, &broker, &cancel);
        tokio::pin!(sending);
        let (mut stop, mut signs) = (None, Signs::new(self.transfer.kernel_pid()));
        let sent = loop {
            let refresh = cell.status_line.next_refresh(cell.now());
            tokio::select! {
                sent = &mut sending => break sent,
                () = tokio::time::sleep(refresh) => self.display.refresh_status_line(cell).await?,
                () = signs.due() => {
                    signs.next();
                    self.link.prepare(cell.job).await;
                }
                message = cell.reader.receive(), if stop.is_none() => {
                    let handled = match message {
                        Ok(message) => on_other(cell, &self.display, message).await,
                        Err(error) => Err(error.into()),
                    };
                    if let Err(stopped) = handled {
                        stop = Some(stopped);
                        cancel.cancel();
                    }
                }
            }
        };
        if let Some(stop) = stop {
            return Err(stop);
        }
        let sent = sent.map_err(|error| Failure::transfer(&error, cell.named_job()))?;
        self.session.state = Some(SessionState::after(version, sent.ledger));
        cell.held = sent.held;
        Ok(sent.state)
    }

    /// Passes everything between the job and the shim, from the submission to the job's last event.
    async fn follow(&mut self, cell: &mut RemoteCell<'_>) -> Result<Finished, Stop> {
        let mut silence = Silence::default();
        let mut names = None;
        let mut signs = Signs::new(self.transfer.kernel_pid());
        cell.status_line.waits(Waiting::Starting { worker: None });
        loop {
            let refresh = silence.next_check(cell.status_line.next_refresh(cell.now()));
            tokio::select! {
                step = self.link.next_of(cell.job) => {
                    if let Some(finished) = self.on_step(cell, step, &mut silence).await? {
                        return Ok(finished);
                    }
                }
                (question, answer) = self.files.next_answer(cell.job) => {
                    self.link.answer(cell.job, question, Answer::Files(answer)).await;
                }
                message = cell.reader.receive() => {
                    self.on_shim_message(cell, message?, &mut names, &mut silence).await?;
                }
                text = self.earlier_kernels.text() => self.display.show_line(cell, &text).await?,
                sent = names::sent(&mut names) => {
                    names = None;
                    self.session.state = Some(names::answer(cell, &self.link, sent).await?);
                }
                () = signs.due() => {
                    // Only a notebook that waits for this cell computes for nothing else.
                    let is_pickling = signs.next() && !cell.kind.outlives_kernel();
                    let prepares_state = is_pickling && !cell.states_wanted.is_empty();
                    if prepares_state || self.files.are_being_prepared() {
                        self.link.prepare(cell.job).await;
                    }
                }
                () = tokio::time::sleep(refresh) => self.display.refresh_status_line(cell).await?,
            }
            silence.check(cell, self.patience)?;
        }
    }

    /// Returns the job's end, if it has ended.
    async fn on_step(
        &mut self,
        cell: &mut RemoteCell<'_>,
        step: Step,
        silence: &mut Silence,
    ) -> Result<Option<Finished>, Stop> {
        if matches!(step, Step::Update(_)) {
            silence.broker_answers();
        }
        match step {
            Step::Update(JobUpdate::Cancelling) => silence.cancel_confirmed(),
            Step::Update(JobUpdate::Lost) => {
                return Err(Failure::job_lost(cell.named_job(), cell.started).into());
            }
            Step::Update(JobUpdate::TooLarge(excess)) => {
                // What was not sent is the submission, unless the broker has it.
                cell.state_may_have_arrived = cell.is_stored;
                return Err(Failure::too_large(excess, cell.named_job(), cell.started).into());
            }
            Step::Update(JobUpdate::Position(mut position)) => {
                cell.is_stored = true;
                position.other = self.naming.other_job(&position.reason, cell.kind);
                let since = cell.now();
                cell.status_line.waits(Waiting::Queued { position, since });
            }
            Step::Update(JobUpdate::Event(event)) => match *event {
                JobEvent::Finished(finished) => {
                    cell.has_ended = true;
                    cell.state_may_have_arrived = cell.worker.is_some();
                    return Ok(Some(finished));
                }
                event => self.on_event(cell, event).await?,
            },
            Step::Status(status) => self.on_status(cell, status, silence).await?,
        }
        Ok(None)
    }

    async fn on_status(
        &mut self,
        cell: &mut RemoteCell<'_>,
        status: Status,
        silence: &mut Silence,
    ) -> Result<(), Stop> {
        match connection(cell, &mut self.display, status).await? {
            Connection::Up(broker) => {
                if silence.broker_is_up() {
                    silence.cancel(cell.job, &self.link).await;
                }
                self.files.answer(cell.job, &broker.chunks);
            }
            Connection::Down(absence) => silence.broker_is_down(absence),
        }
        Ok(())
    }

    async fn on_shim_message(
        &mut self,
        cell: &mut RemoteCell<'_>,
        message: Option<FromNotebook>,
        names: &mut Option<names::Sending>,
        silence: &mut Silence,
    ) -> Result<(), Stop> {
        match message {
            Some(FromNotebook::State { call, state }) if call == cell.call => {
                // The worker may be about to give up, and sending takes time.
                self.link.prepare(cell.job).await;
                let state = self.send_state(cell, state).await?;
                if let Some(question) = cell.states_wanted.pop_front() {
                    let answer = Answer::State(state);
                    self.link.answer(cell.job, question, answer).await;
                }
                cell.release().await?;
            }
            Some(FromNotebook::Names { call, state }) if call == cell.call => {
                let continues = |session: &SessionState| session.version.messages == state.messages;
                let session = self.session.state.take().filter(continues);
                let session = session.ok_or_else(|| Failure::out_of_step(cell.named_job()))?;
                let broker = self.link.broker();
                let transfer = self.transfer.clone();
                *names = Some(names::send(transfer, broker, session, state));
            }
            Some(FromNotebook::Input { call, value }) if call == cell.call => {
                if let Some(question) = cell.input_question {
                    let answer = Answer::Input(value);
                    self.link.answer(cell.job, question, answer).await;
                }
            }
            other => match cell.stop_of(other) {
                Some(Stop::Cancelled) if !silence.is_down() => {
                    cell.cancelled_here = true;
                    silence.cancel(cell.job, &self.link).await;
                    cell.status_line.stops(cell.now());
                }
                Some(stop) => return Err(stop),
                None => self.display.replay_wanted(cell).await?,
            },
        }
        Ok(())
    }

    async fn on_event(&mut self, cell: &mut RemoteCell<'_>, event: JobEvent) -> Result<(), Stop> {
        cell.is_stored = true;
        let call = cell.call;
        match event {
            JobEvent::Assigned {
                worker,
                gpu,
                timeout_ms,
            } => {
                let now = cell.now();
                cell.status_line
                    .assigned(worker.clone(), gpu, timeout_ms, now);
                cell.worker = Some(worker);
            }
            JobEvent::StateWanted { question } | JobEvent::BytesWanted { question } => {
                if matches!(event, JobEvent::BytesWanted { .. }) {
                    self.transfer.use_chunks();
                }
                self.session.state = None;
                cell.states_wanted.push_back(question);
                cell.writer.send(&ToNotebook::StateWanted { call }).await?;
            }
            JobEvent::Started { worker } => {
                cell.started = true;
                self.session.ended.forget();
                self.naming.was_stopped = false;
                self.display.started(cell).await?;
                cell.status_line.starts(cell.now());
                cell.worker = Some(worker);
            }
            JobEvent::Output(output) => self.display.show(cell, output).await?,
            JobEvent::FilesWanted { question, wanted } => {
                self.files.asked(question, wanted);
                if let Connection::Up(broker) = cell.connection(self.link.status())? {
                    self.files.answer(cell.job, &broker.chunks);
                }
            }
            JobEvent::InputWanted {
                question,
                prompt,
                password,
            } => {
                cell.input_question = Some(question);
                let wanted = ToNotebook::InputWanted {
                    call,
                    prompt,
                    password,
                };
                cell.writer.send(&wanted).await?;
            }
            JobEvent::NamesWanted { question, names } => {
                cell.names_question = Some(question);
                let wanted = ToNotebook::NamesWanted { call, names };
                cell.writer.send(&wanted).await?;
            }
            JobEvent::Charged(left) => cell.status_line.charged(left),
            // `NotStarted` never leaves the broker; `DeferredState` arrives after the cell.
            JobEvent::NotStarted { .. }
            | JobEvent::Finished(_)
            | JobEvent::DeferredState { .. }
            | JobEvent::Salvaged { .. } => {}
        }
        Ok(())
    }

    /// A cell ends without a result.
    async fn on_stop(
        &mut self,
        cell: &mut RemoteCell<'_>,
        stop: Stop,
    ) -> Result<CellEnd, FrameError> {
        let before = cell
            .session_before
            .take()
            .or_else(|| self.session.state.take());
        self.session.state = before.filter(|_| !cell.state_may_have_arrived);
        let table_kept = self.session.state.is_some();
        self.naming.was_stopped = !matches!(stop, Stop::Failed(_) | Stop::Detached(_));
        // The broker decides whether the job goes on once it knows that the notebook kernel has ended.
        let is_left = cell.kind.outlives_kernel()
            && matches!(stop, Stop::KernelGone | Stop::Shim(_) | Stop::Ending(_));
        if matches!(stop, Stop::Detached(_)) {
            self.link.detach(cell.job).await;
            self.display.close_comms(cell);
        } else if !is_left {
            let outcome = match &stop {
                Stop::Failed(failure) => Some(failure.outcome),
                _ => (!cell.withdrawn).then_some(Outcome::Cancelled),
            };
            self.link.give_up(cell.job, outcome).await;
            self.session.deferred.request(&self.link).await;
            self.display.close_comms(cell);
        }
        let message = match stop {
            Stop::Cancelled | Stop::GivenUp => cell.cancelled(table_kept),
            Stop::Failed(failure) | Stop::Detached(failure) => cell.failed(*failure, table_kept),
            Stop::Replaced(run) => return Ok(CellEnd::Replaced(run)),
            Stop::Ending(call) => {
                self.on_ending(call, cell.writer).await?;
                return Ok(CellEnd::Done);
            }
            Stop::KernelGone => return Ok(CellEnd::KernelGone),
            Stop::Shim(error) => return Err(error),
        };
        file_changes::warn_if_not_undone(&self.files, &mut self.display, cell).await;
        self.display.end_status_line(cell).await?;
        cell.writer.send(&message).await?;
        Ok(CellEnd::Done)
    }
}
