//! The arbiter with real sessions and the real clock.
//!
//! A session of the arbiter is a process here, by the number of its connection. What a process has that cannot leave
//! the GPU is to the arbiter one more session, which never computes; so it can grow and shrink.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use baton_arbiter::{Action, Arbiter, Event, SessionId, Settings};
use baton_interposer::wire::{FromSession, Hello, ToSession};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{Admission, Cell, Token, Usage};

#[derive(Debug)]
pub(super) enum Input {
    Admitted(Admission),
    Dismissed(Token),
    Limited(Token, Option<u64>),
    Cell(Token, Cell),
    UsageAsked(Token, oneshot::Sender<Usage>),
    Arrived(Arrival),
    Said(u64, FromSession),
    Left(u64),
}

#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) number: u64,
    pub(super) hello: Hello,
    pub(super) process: Pid,
    pub(super) outgoing: mpsc::UnboundedSender<ToSession>,
}

pub(super) struct Arbitration {
    /// There is one as soon as a session has said how large the GPU is.
    arbiter: Option<Arbiter>,
    settings: Option<MakeSettings>,
    usable_bytes: u64,
    since: Instant,
    sessions: HashMap<Token, Session>,
    processes: BTreeMap<u64, Process>,
}

struct Session {
    admission: Admission,
    /// For now.
    limit_bytes: Option<u64>,
    is_running: bool,
    usage: Usage,
}

struct Process {
    token: Token,
    process: Pid,
    outgoing: mpsc::UnboundedSender<ToSession>,
    bytes: u64,
    fixed_bytes: u64,
    /// What it had when it came is in the arbiter's ledger.
    is_welcome: bool,
    waits_since: Option<Instant>,
    holds_since: Option<Instant>,
}

pub(super) type MakeSettings = Box<dyn FnOnce(u64) -> Settings + Send + Sync>;

/// Sessions of the arbiter that stand for what cannot leave the GPU.
const FIXED: SessionId = 1 << 63;

impl Arbitration {
    pub(super) fn new(settings: MakeSettings) -> Self {
        Self {
            arbiter: None,
            settings: Some(settings),
            usable_bytes: 0,
            since: Instant::now(),
            sessions: HashMap::new(),
            processes: BTreeMap::new(),
        }
    }

    pub(super) async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        loop {
            let wake_at = self.arbiter.as_ref().and_then(Arbiter::wake_at);
            let wake_at = wake_at.map(|time| self.since + time);
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.take_in(input),
                    None => return,
                },
                () = at(wake_at) => self.handle(Event::Woke),
            }
        }
    }

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Admitted(admission) => {
                self.sessions.insert(
                    admission.token,
                    Session {
                        admission,
                        limit_bytes: None,
                        is_running: false,
                        usage: Usage::default(),
                    },
                );
            }
            Input::Dismissed(token) => {
                self.sessions.remove(&token);
            }
            Input::Limited(token, bytes) => self.on_limit(token, bytes),
            Input::Cell(token, cell) => self.on_cell(token, cell),
            Input::UsageAsked(token, answer) => {
                let _ = answer.send(self.usage(token));
            }
            Input::Arrived(arrival) => self.on_arrival(arrival),
            Input::Said(number, message) => self.on_message(number, message),
            Input::Left(number) => self.on_end(number),
        }
    }

    fn on_cell(&mut self, token: Token, cell: Cell) {
        let Some(session) = self.sessions.get_mut(&token) else {
            return;
        };
        session.is_running = cell != Cell::Ended;
        for number in self.processes_of(token) {
            self.handle(match cell {
                Cell::Expected => Event::Expected(number),
                Cell::Started => Event::CellStarted(number),
                Cell::Ended => Event::CellEnded(number),
            });
        }
    }

    fn on_limit(&mut self, token: Token, limit_bytes: Option<u64>) {
        let Some(session) = self.sessions.get_mut(&token) else {
            return;
        };
        session.limit_bytes = limit_bytes;
        let cap_bytes = self.cap_bytes(token);
        for number in self.processes_of(token) {
            if self.processes[&number].is_welcome {
                self.tell(number, ToSession::Welcome { cap_bytes });
            }
        }
    }

    /// What the session may allocate, all its processes together.
    fn cap_bytes(&self, token: Token) -> u64 {
        let session = self.sessions.get(&token);
        let caps = session.map(|session| [session.admission.cap_bytes, session.limit_bytes]);
        let least = caps.into_iter().flatten().flatten().min();
        least.map_or(self.usable_bytes, |cap| cap.min(self.usable_bytes))
    }

    /// What was used until now, and from now on anew.
    fn usage(&mut self, token: Token) -> Usage {
        for number in self.processes_of(token) {
            self.charge(number);
        }
        let bytes = self.allocated_bytes(token);
        let Some(session) = self.sessions.get_mut(&token) else {
            return Usage::default();
        };
        let next = Usage {
            peak_bytes: bytes,
            fault: session.usage.fault,
            ..Usage::default()
        };
        std::mem::replace(&mut session.usage, next)
    }

    // ---- processes

    fn on_arrival(&mut self, arrival: Arrival) {
        let Arrival {
            number,
            hello,
            process,
            outgoing,
        } = arrival;
        let Some(session) = self.sessions.get(&hello.token) else {
            tracing::warn!(
                "Process {process} wants to use the GPU for a session that there is not"
            );
            return;
        };
        if let Some(make) = self.settings.take() {
            let settings = make(hello.total_bytes);
            self.usable_bytes = settings.memory.usable_bytes;
            self.arbiter = Some(Arbiter::new(settings));
        }
        let (user, is_running) = (session.admission.user, session.is_running);
        self.processes.insert(
            number,
            Process {
                token: hello.token,
                process,
                outgoing,
                bytes: 0,
                fixed_bytes: 0,
                is_welcome: false,
                waits_since: None,
                holds_since: None,
            },
        );
        self.handle(Event::Joined {
            session: number,
            user,
            fixed_bytes: 0,
        });
        if hello.is_away {
            self.handle(Event::NotSwappedIn(number));
        }
        if hello.bytes > 0 {
            self.handle(Event::Grew {
                session: number,
                bytes: hello.bytes,
            });
        }
        if hello.bytes == 0 {
            self.welcome(number);
        }
        self.set_fixed(number, hello.fixed_bytes);
        if is_running {
            self.handle(Event::CellStarted(number));
        }
    }

    fn on_message(&mut self, number: u64, message: FromSession) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let session = number;
        match message {
            FromSession::Hello(_) => {}
            FromSession::Want => {
                process.waits_since.get_or_insert_with(Instant::now);
                self.handle(Event::Wanted(number));
            }
            FromSession::Yielded { epoch, .. } => {
                self.charge(number);
                if let Some(process) = self.processes.get_mut(&number) {
                    process.holds_since = None;
                }
                self.handle(Event::Yielded { session, epoch });
            }
            FromSession::Grew { bytes } => {
                let token = process.token;
                if self.allocated_bytes(token).saturating_add(bytes) > self.cap_bytes(token) {
                    self.tell(number, ToSession::Refuse { bytes });
                } else {
                    self.handle(Event::Grew { session, bytes });
                }
            }
            FromSession::Shrank { bytes } => {
                process.bytes = process.bytes.saturating_sub(bytes);
                self.handle(Event::Shrank { session, bytes });
            }
            FromSession::Fixed { bytes } => self.set_fixed(number, bytes),
            FromSession::SwappedOut { bytes, nanoseconds } => {
                self.note(number, |usage| usage.moved(bytes, nanoseconds));
                self.handle(Event::SwappedOut(number));
            }
            FromSession::SwappedIn { bytes, nanoseconds } => {
                self.note(number, |usage| {
                    usage.swaps += 1;
                    usage.moved(bytes, nanoseconds);
                });
                self.handle(Event::SwappedIn(number));
            }
            FromSession::NotSwappedIn => self.handle(Event::NotSwappedIn(number)),
            FromSession::Fault { code } => {
                self.note(number, |usage| usage.fault = Some(code));
            }
        }
    }

    fn on_end(&mut self, number: u64) {
        self.charge(number);
        self.set_fixed(number, 0);
        if self.processes.remove(&number).is_some() {
            self.handle(Event::Left(number));
        }
    }

    fn set_fixed(&mut self, number: u64, bytes: u64) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut process.fixed_bytes, bytes);
        if before == bytes {
            return;
        }
        let token = process.token;
        self.note_peak(number);
        if before > 0 {
            self.handle(Event::Left(FIXED | number));
        }
        if bytes > 0 {
            let session = self.sessions.get(&token);
            let user = session.map_or(0, |session| session.admission.user);
            self.handle(Event::Joined {
                session: FIXED | number,
                user,
                fixed_bytes: bytes,
            });
        }
    }

    fn processes_of(&self, token: Token) -> Vec<u64> {
        let of_it = self.processes.iter();
        of_it
            .filter(|(_, process)| process.token == token)
            .map(|(number, _)| *number)
            .collect()
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
                self.tell(session, ToSession::Grant { epoch });
            }
            Action::Drop { session, epoch, .. } => self.tell(session, ToSession::Drop { epoch }),
            Action::SwapOut(session) => self.tell(session, ToSession::SwapOut),
            Action::SwapIn(session) => self.tell(session, ToSession::SwapIn),
            Action::Grow { session, bytes } => {
                if let Some(process) = self.processes.get_mut(&session) {
                    process.bytes += bytes;
                    if process.is_welcome {
                        self.tell(session, ToSession::Grow { bytes });
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
                    self.tell(session, ToSession::Refuse { bytes });
                }
                self.welcome(session);
            }
            Action::End(session) => self.end(session),
        }
    }

    fn end(&mut self, number: u64) {
        self.note(number, |usage| usage.overstayed = true);
        if let Some(process) = self.processes.get(&number) {
            let process = process.process;
            tracing::warn!("Process {process} kept the GPU when its turn was over, and is ended");
            if process.as_raw() > 0 {
                let _ = kill(process, Signal::SIGKILL);
            }
        }
    }

    /// From now on it speaks.
    fn welcome(&mut self, number: u64) {
        let new = self
            .processes
            .get_mut(&number)
            .filter(|one| !one.is_welcome);
        if let Some(process) = new {
            process.is_welcome = true;
            let token = process.token;
            let cap_bytes = self.cap_bytes(token);
            self.tell(number, ToSession::Welcome { cap_bytes });
        }
    }

    fn tell(&self, number: u64, message: ToSession) {
        if let Some(process) = self.processes.get(&number) {
            // Its end is on its way here.
            let _ = process.outgoing.send(message);
        }
    }

    // ---- usage

    /// Puts down how long it waited or held the GPU until now.
    fn charge(&mut self, number: u64) {
        let now = Instant::now();
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let until_now = |since: &mut Option<Instant>| match since {
            Some(since) => now - std::mem::replace(since, now),
            None => Duration::ZERO,
        };
        let held = until_now(&mut process.holds_since);
        let waited = until_now(&mut process.waits_since);
        self.note(number, |usage| {
            usage.held += held;
            usage.waited += waited;
        });
    }

    fn note_peak(&mut self, number: u64) {
        let Some(process) = self.processes.get(&number) else {
            return;
        };
        let bytes = self.allocated_bytes(process.token);
        self.note(number, |usage| {
            usage.peak_bytes = usage.peak_bytes.max(bytes)
        });
    }

    fn allocated_bytes(&self, token: Token) -> u64 {
        let of_it = self.processes.values();
        of_it
            .filter(|process| process.token == token)
            .map(Process::total_bytes)
            .sum()
    }

    fn note(&mut self, number: u64, change: impl FnOnce(&mut Usage)) {
        let token = self.processes.get(&number).map(|process| process.token);
        if let Some(session) = token.and_then(|token| self.sessions.get_mut(&token)) {
            change(&mut session.usage);
        }
    }
}

impl Usage {
    fn moved(&mut self, bytes: u64, nanoseconds: u64) {
        self.moved_bytes += bytes;
        self.moving += Duration::from_nanos(nanoseconds);
    }
}

impl Process {
    fn total_bytes(&self) -> u64 {
        self.bytes + self.fixed_bytes
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
