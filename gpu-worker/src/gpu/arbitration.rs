//! The arbiter with real sessions and the real clock.
//!
//! A session of the arbiter is a process here, identified by the number of its connection. Memory of a process
//! that cannot leave the GPU is a separate session for the arbiter, one that never computes, so that it can
//! grow and shrink. So is the room that others make for memory that is in no ledger.

mod processes;
mod rooms;
mod usage;

use self::rooms::Rooms;
use super::{Admission, Cell, HostRoom, Lone, Monitored, Token, Usage};
use baton_interposer::wire::{FromSession, Hello, ToSession};
use baton_scheduling::arbiter::{Action, Arbiter, EndReason, Event, Settings};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::Arc,
};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

/// Requests of the worker.
#[derive(Debug)]
pub(super) enum Request {
    /// Admits a session. The sender announces whether the session should leave the GPU.
    Admit(Admission, watch::Sender<bool>),
    Dismiss(Token),
    Limit(Token, Option<u64>, Unheard),
    Cell(Token, Cell),
    TellUsage(Token, oneshot::Sender<Usage>),
    TellProcess(Token, oneshot::Sender<Option<Lone>>),
    Vacated(Lone),
    MakeRoom(Token, u64, oneshot::Sender<bool>),
    LeaveRoom(Token),
    TellProcesses(oneshot::Sender<Vec<Pid>>),
    HostHas(HostRoom),
    /// A process of this session uses the GPU without a connection.
    Bypassed(Token, Pid),
}

/// Nothing is sent over it. The last clone is dropped when every process has adopted the new limit.
pub(super) type Unheard = mpsc::Sender<Infallible>;

/// Events of sessions' processes.
#[derive(Debug)]
pub(super) enum Input {
    Arrived(Arrival),
    Said(u64, FromSession),
    /// A process of this session asks what the session has.
    Looked(Token, oneshot::Sender<Vec<ToSession>>),
    Left(u64),
}

#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) number: u64,
    pub(super) hello: Hello,
    pub(super) process: Pid,
    pub(super) outgoing: mpsc::Sender<ToSession>,
}

pub(super) struct Arbitration {
    /// Created when a session first reports how large the GPU is.
    arbiter: Option<Arbiter>,
    settings: Option<MakeSettings>,
    /// The GPU in the driver's monitoring, if that is available.
    monitored: Option<Monitored>,
    usable_bytes: u64,
    arrivals: Arc<Notify>,
    since: Instant,
    sessions: HashMap<Token, Session>,
    processes: BTreeMap<u64, Process>,
    rooms: Rooms,
}

struct Session {
    admission: Admission,
    /// The current limit, in addition to the admission's cap.
    limit_bytes: Option<u64>,
    is_running: bool,
    /// True while the session has no cell and others need the room that its contexts take.
    released: watch::Sender<bool>,
    usage: Usage,
}

struct Process {
    token: Token,
    process: Pid,
    /// `None` once the connection is being closed.
    outgoing: Option<mpsc::Sender<ToSession>>,
    bytes: u64,
    fixed_bytes: u64,
    /// Whether the arbiter's ledger contains the memory that the process had when it connected.
    is_welcome: bool,
    /// Set while the process has not confirmed a new cap.
    unheard: Option<Unheard>,
    waits_since: Option<Instant>,
    holds_since: Option<Instant>,
}

impl Process {
    fn total_bytes(&self) -> u64 {
        self.bytes + self.fixed_bytes
    }
}

pub(super) type MakeSettings = Box<dyn FnOnce(u64) -> Settings + Send + Sync>;

impl Arbitration {
    pub(super) fn new(
        settings: MakeSettings,
        monitored: Option<Monitored>,
        arrivals: Arc<Notify>,
    ) -> Self {
        Self {
            arbiter: None,
            settings: Some(settings),
            monitored,
            usable_bytes: 0,
            arrivals,
            since: Instant::now(),
            sessions: HashMap::new(),
            processes: BTreeMap::new(),
            rooms: Rooms::default(),
        }
    }

    pub(super) async fn run(
        mut self,
        mut requests: mpsc::UnboundedReceiver<Request>,
        mut inputs: mpsc::Receiver<Input>,
    ) {
        loop {
            let wake_at = self.arbiter.as_ref().and_then(Arbiter::wake_at);
            let wake_at = wake_at.map(|time| self.since + time);
            tokio::select! {
                // Timers come before the worker's requests, and those before sessions' messages, however many
                // arrive.
                biased;
                () = at(wake_at) => self.handle(Event::Woke),
                request = requests.recv() => match request {
                    Some(request) => self.on_request(request),
                    None => return,
                },
                Some(input) = inputs.recv() => self.take_in(input),
            }
        }
    }

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Admit(admission, released) => {
                self.sessions.insert(
                    admission.token,
                    Session {
                        admission,
                        released,
                        limit_bytes: None,
                        is_running: false,
                        usage: Usage::default(),
                    },
                );
            }
            Request::Dismiss(token) => {
                self.sessions.remove(&token);
                for number in self.processes_of(token) {
                    self.cut_off(number);
                }
            }
            Request::Limit(token, bytes, unheard) => self.on_limit(token, bytes, &unheard),
            Request::Cell(token, cell) => self.on_cell(token, cell),
            Request::TellUsage(token, answer) => {
                let _ = answer.send(self.usage(token));
            }
            Request::TellProcess(token, answer) => {
                let _ = answer.send(self.lone_process(token));
            }
            Request::MakeRoom(token, more, answer) => self.make_room(token, more, answer),
            Request::LeaveRoom(token) => self.leave_room(token),
            Request::TellProcesses(answer) => {
                let processes = self.processes.values().map(|one| one.process);
                let _ = answer.send(processes.collect());
            }
            Request::HostHas(room) => self.on_host(&room),
            Request::Bypassed(token, process) => {
                if let Some(session) = self.sessions.get_mut(&token) {
                    tracing::warn!(
                        "Process {process} of a session uses the GPU without time-sharing"
                    );
                    session.usage.bypassed = true;
                }
            }
            Request::Vacated(lone) => {
                let process = self.processes.get(&lone.number);
                let session = process.and_then(|one| self.sessions.get(&one.token));
                if let Some(session) = session {
                    session.released.send_replace(false);
                }
                self.handle(Event::Vacated(lone.number));
            }
        }
    }

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Arrived(arrival) => self.on_arrival(arrival),
            Input::Said(number, message) => self.on_message(number, message),
            Input::Looked(token, answer) => {
                let _ = answer.send(self.has(token));
            }
            Input::Left(number) => self.on_end(number),
        }
    }

    fn on_cell(&mut self, token: Token, cell: Cell) {
        let Some(session) = self.sessions.get_mut(&token) else {
            return;
        };
        session.is_running = cell != Cell::Ended;
        if session.is_running {
            session.released.send_replace(false);
        }
        for number in self.processes_of(token) {
            self.handle(match cell {
                Cell::Expected => Event::Expected(number),
                Cell::Started => Event::CellStarted(number),
                Cell::Ended => Event::CellEnded(number),
            });
        }
    }

    fn on_limit(&mut self, token: Token, limit_bytes: Option<u64>, unheard: &Unheard) {
        let Some(session) = self.sessions.get_mut(&token) else {
            return;
        };
        let before = std::mem::replace(&mut session.limit_bytes, limit_bytes);
        let cap_bytes = self.cap_bytes(token);
        for number in self.processes_of(token) {
            if let Some(process) = self.processes.get_mut(&number)
                && process.is_welcome
                && (before != limit_bytes || process.unheard.is_some())
            {
                process.unheard = Some(unheard.clone());
                self.send(number, ToSession::Welcome { cap_bytes });
            }
        }
    }

    /// How much the session may allocate, all its processes together.
    fn cap_bytes(&self, token: Token) -> u64 {
        let session = self.sessions.get(&token);
        let caps = session.map(|session| [session.admission.cap_bytes, session.limit_bytes]);
        let least = caps.into_iter().flatten().flatten().min();
        least.map_or(self.usable_bytes, |cap| cap.min(self.usable_bytes))
    }

    fn on_host(&mut self, room: &HostRoom) {
        self.handle(Event::HostHas { bytes: room.bytes });
        for (process, bytes) in &room.of_processes {
            let mut all = self.processes.iter();
            if let Some((number, _)) = all.find(|(_, one)| one.process == *process) {
                let (session, bytes) = (*number, *bytes);
                self.handle(Event::SessionHas { session, bytes });
            }
        }
    }

    // ---- the arbiter

    fn handle(&mut self, event: Event) {
        let now = self.since.elapsed();
        let actions = self.arbiter.as_mut().map(|one| one.handle(event, now));
        for action in actions.unwrap_or_default() {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Grant { session, epoch } => {
                self.charge(session);
                if let Some(process) = self.processes.get_mut(&session) {
                    process.waits_since = None;
                    process.holds_since = Some(Instant::now());
                }
                self.send(session, ToSession::Grant { epoch });
            }
            Action::Preempt { session, epoch, .. } => {
                self.send(session, ToSession::Preempt { epoch })
            }
            Action::SwapOut { session, bytes } => self.send(session, ToSession::SwapOut { bytes }),
            Action::SwapIn(session) => self.send(session, ToSession::SwapIn),
            Action::Pin { session, bytes } => self.send(session, ToSession::Pin { bytes }),
            Action::Unpin { session, bytes } => self.send(session, ToSession::Unpin { bytes }),
            Action::Trim(session) => self.send(session, ToSession::Trim),
            Action::Grow { session, .. } if self.answer_room(session, true) => {}
            Action::Refuse { session, .. } if self.answer_room(session, false) => {}
            Action::Grow { session, bytes } => {
                if let Some(process) = self.processes.get_mut(&session) {
                    process.bytes += bytes;
                    if process.is_welcome {
                        self.send(session, ToSession::Grow { bytes });
                    }
                }
                self.welcome(session);
                self.note_peak(session);
            }
            Action::Refuse { session, bytes } => {
                if self
                    .processes
                    .get(&session)
                    .is_some_and(|one| one.is_welcome)
                {
                    self.send(session, ToSession::Refuse { bytes });
                }
                self.welcome(session);
            }
            Action::End { session, reason } => self.end(session, reason),
            Action::Release(session) => {
                let process = self.processes.get(&session);
                let session = process.and_then(|one| self.sessions.get(&one.token));
                if let Some(session) = session {
                    session.released.send_replace(true);
                }
            }
        }
    }

    fn end(&mut self, number: u64, reason: EndReason) {
        self.note(number, |usage| usage.ended = Some(reason));
        if let Some(process) = self.processes.get(&number) {
            let process = process.process;
            tracing::warn!("Killing process {process}: {}", why(reason));
            if process.as_raw() > 0 {
                let _ = kill(process, Signal::SIGKILL);
            }
        }
        self.cut_off(number);
    }

    /// Welcomes the process, unless that was done before.
    fn welcome(&mut self, number: u64) {
        let new = self
            .processes
            .get_mut(&number)
            .filter(|one| !one.is_welcome);
        if let Some(process) = new {
            process.is_welcome = true;
            let token = process.token;
            let cap_bytes = self.cap_bytes(token);
            self.send(number, ToSession::Welcome { cap_bytes });
        }
    }

    /// Sends a message. A process that does not read its messages is cut off.
    fn send(&mut self, number: u64, message: ToSession) {
        if let Some(process) = self.processes.get(&number)
            && let Some(outgoing) = &process.outgoing
            && outgoing.try_send(message).is_err()
        {
            self.cut_off(number);
        }
    }

    /// Closes the connection; [`Input::Left`] follows.
    fn cut_off(&mut self, number: u64) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.outgoing = None;
            process.unheard = None;
        }
    }
}

fn why(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Kept => "it did not give up the GPU or its memory there",
        EndReason::NoRoom => "its memory no longer fits on the GPU",
        EndReason::NoHostRoom => {
            "the host has no room for the memory that would have to leave the GPU"
        }
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
