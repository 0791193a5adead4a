//! The arbiter with real sessions and the real clock.
//!
//! A session of the arbiter is a process here, identified by the number of its connection. Memory of a process
//! that cannot leave the GPU is a separate session for the arbiter, one that never computes, so that it can
//! grow and shrink. So is the room that others make for memory that is in no ledger.

mod rooms;
mod sessions;

use self::{rooms::Rooms, sessions::Sessions};
use super::{Admission, Cell, HostRoom, Lone, Monitored, Token, Usage};
use crate::deadline::at;
use baton_interposer::wire::{FromSession, Hello, ToSession};
use baton_scheduling::arbiter::{Action, Arbiter, Event, SessionId, Settings};
use nix::unistd::Pid;
use std::{convert::Infallible, sync::Arc};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::Instant,
};

/// Marks the ids of the arbiter's sessions that stand for memory that cannot leave the GPU.
const FIXED: SessionId = 1 << 63;

/// More than any GPU has.
const MOST_BYTES: u64 = 1 << 48;

/// Requests of the worker.
#[derive(Debug)]
pub(super) enum Request {
    /// Admits a session. The sender announces whether the session should leave the GPU.
    Admit(Admission, watch::Sender<bool>),
    Dismiss(Token),
    Limit(Token, Option<u64>, Unheard),
    Cell(Token, Cell),
    TellUsage(Token, oneshot::Sender<Usage>),
    TellWaiting(Token, oneshot::Sender<bool>),
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
    /// The same process in its session's namespace.
    pub(super) inner_process: Pid,
    pub(super) outgoing: mpsc::Sender<ToSession>,
}

pub(super) struct Arbitration {
    /// Created when the first session connects, because it may have to report how large the GPU is.
    arbiter: Option<Arbiter>,
    settings: Option<MakeSettings>,
    /// The GPU in the driver's monitoring, if that is available.
    monitored: Option<Monitored>,
    arrivals: Arc<Notify>,
    since: Instant,
    sessions: Sessions,
    rooms: Rooms,
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
            arrivals,
            since: Instant::now(),
            sessions: Sessions::default(),
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

    // ---- the worker's requests

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Admit(admission, released) => self.sessions.admit(admission, released),
            Request::Dismiss(token) => self.sessions.dismiss(token),
            Request::Limit(token, bytes, unheard) => self.sessions.limit(token, bytes, &unheard),
            Request::Cell(token, cell) => self.on_cell(token, cell),
            Request::TellUsage(token, answer) => {
                let _ = answer.send(self.sessions.usage(token));
            }
            Request::TellWaiting(token, answer) => {
                let _ = answer.send(self.sessions.waits(token));
            }
            Request::TellProcess(token, answer) => {
                let _ = answer.send(self.sessions.lone_process(token));
            }
            Request::MakeRoom(token, more, answer) => self.make_room(token, more, answer),
            Request::LeaveRoom(token) => {
                if let Some(session) = self.rooms.close(token) {
                    self.handle(Event::Left(session));
                }
            }
            Request::TellProcesses(answer) => {
                let _ = answer.send(self.sessions.all_processes());
            }
            Request::HostHas(room) => self.on_host(&room),
            Request::Bypassed(token, process) => self.sessions.note_bypass(token, process),
            Request::Vacated(lone) => {
                self.sessions.set_released(lone.number, false);
                self.handle(Event::Vacated(lone.number));
            }
        }
    }

    fn on_cell(&mut self, token: Token, cell: Cell) {
        let is_running = cell != Cell::Ended;
        for number in self.sessions.set_running(token, is_running) {
            self.handle(match cell {
                Cell::Expected => Event::Expected(number),
                Cell::Started => Event::CellStarted(number),
                Cell::Stopped => Event::CellStopped(number),
                Cell::Ended => Event::CellEnded(number),
            });
        }
    }

    fn on_host(&mut self, room: &HostRoom) {
        self.handle(Event::HostHas { bytes: room.bytes });
        for (process, bytes) in &room.of_processes {
            if let Some(session) = self.sessions.number(*process) {
                let bytes = *bytes;
                self.handle(Event::SessionHas { session, bytes });
            }
        }
    }

    /// Asks for a room that is larger by `more` bytes than before, which was not enough.
    fn make_room(&mut self, token: Token, more: u64, answer: oneshot::Sender<bool>) {
        let room = self.rooms.enlarge(token, more, answer);
        let (session, bytes) = (room.session, room.bytes);
        self.rejoin(session, token, 0);
        self.handle(Event::CellStarted(session));
        if room.before_bytes > 0 {
            let free_bytes = self.free_bytes(0);
            self.handle(Event::NotGrown {
                session,
                bytes: room.before_bytes,
                swapped_out_bytes: 0,
                free_bytes,
            });
        }
        self.handle(Event::Grew { session, bytes });
    }

    // ---- processes of sessions

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Arrived(arrival) => self.on_arrival(arrival),
            Input::Said(number, message) => self.on_message(number, message),
            Input::Looked(token, answer) => {
                let _ = answer.send(self.sessions.has(token));
            }
            Input::Left(number) => self.on_end(number),
        }
    }

    fn on_arrival(&mut self, arrival: Arrival) {
        if !self.may_join(&arrival) {
            return;
        }
        let Arrival { number, hello, .. } = arrival;
        if let Some(make) = self.settings.take() {
            let settings = make(hello.total_bytes.min(MOST_BYTES));
            self.sessions.usable_bytes = settings.memory.usable_bytes;
            self.arbiter = Some(Arbiter::new(settings));
        }
        self.sessions.insert(arrival);
        self.join(number, hello.token, 0);
        self.arrivals.notify_one();
        if hello.is_away {
            self.handle(Event::NotSwappedIn(number));
        }
        let bytes = hello.bytes.min(self.sessions.usable_bytes);
        if bytes > 0 {
            let session = number;
            self.handle(Event::Grew { session, bytes });
        } else {
            self.sessions.welcome(number);
        }
        self.set_fixed(number, hello.fixed_bytes);
        if self.sessions.is_running(hello.token) {
            self.handle(Event::CellStarted(number));
        }
    }

    fn may_join(&self, arrival: &Arrival) -> bool {
        let Arrival { hello, process, .. } = arrival;
        if self.sessions.user(hello.token).is_none() {
            tracing::warn!("Process {process} wants to use the GPU for an unknown session");
            return false;
        }
        if (self.monitored.as_ref()).is_some_and(|gpu| gpu.is_another(hello.device)) {
            tracing::warn!(
                "Process {process} uses a GPU that is not its session's, without time-sharing"
            );
            return false;
        }
        self.sessions.has_room_for(arrival) && (self.arbiter.is_some() || hello.total_bytes > 0)
    }

    fn on_message(&mut self, number: u64, message: FromSession) {
        if self.sessions.token(number).is_none() {
            return;
        }
        let session = number;
        match message {
            FromSession::Hello(_) | FromSession::Look { .. } => {}
            FromSession::Want => {
                self.sessions.wait(number);
                self.handle(Event::Wanted(number));
            }
            FromSession::Yielded { epoch, .. } => {
                self.sessions.take_back(number);
                self.handle(Event::Yielded { session, epoch });
            }
            FromSession::Grew { bytes } => {
                if self.sessions.may_grow(number, bytes) {
                    self.handle(Event::Grew { session, bytes });
                }
            }
            FromSession::NeedsRoom { bytes } => {
                if self.sessions.may_have_room(number, bytes) {
                    self.handle(Event::Grew { session, bytes });
                }
            }
            FromSession::Shrank { bytes, away_bytes } => {
                self.sessions.shrink(number, bytes);
                self.handle(Event::Shrank {
                    session,
                    bytes,
                    swapped_out_bytes: away_bytes,
                });
            }
            FromSession::Left { bytes } => self.handle(Event::PartLeft { session, bytes }),
            FromSession::Fixed { bytes } => self.set_fixed(number, bytes),
            FromSession::SwappedOut {
                bytes,
                nanoseconds,
                new_place_bytes,
            } => {
                self.sessions.note(number, |usage| {
                    usage.moved(bytes, nanoseconds);
                    usage.pinned_in_moves(new_place_bytes);
                });
                self.handle(Event::SwappedOut(number));
            }
            FromSession::SwappedIn { bytes, nanoseconds } => {
                self.sessions.note(number, |usage| {
                    usage.swaps += 1;
                    usage.moved(bytes, nanoseconds);
                });
                self.handle(Event::SwappedIn(number));
            }
            FromSession::Pinned { bytes } => {
                (self.sessions).note(number, |usage| usage.pinned_ahead(bytes));
                self.handle(Event::Pinned { session, bytes });
            }
            FromSession::CanTrim => self.handle(Event::CanTrim(number)),
            FromSession::Trimmed => self.handle(Event::Trimmed(number)),
            FromSession::NotSwappedIn => self.handle(Event::NotSwappedIn(number)),
            FromSession::NoRoom { bytes, free_bytes } => {
                let bytes = bytes.min(self.sessions.usable_bytes);
                let free_bytes = self.free_bytes(free_bytes);
                self.handle(Event::NoRoom {
                    session,
                    bytes,
                    free_bytes,
                });
            }
            FromSession::NotGrown {
                bytes,
                away_bytes,
                free_bytes,
            } => {
                self.sessions.shrink(number, bytes);
                let bytes = bytes.min(self.sessions.usable_bytes);
                let free_bytes = self.free_bytes(free_bytes);
                self.handle(Event::NotGrown {
                    session,
                    bytes,
                    swapped_out_bytes: away_bytes,
                    free_bytes,
                });
            }
            FromSession::Fault { code } => {
                (self.sessions).note(number, |usage| usage.fault = Some(code));
            }
            FromSession::Capped { cap_bytes } => self.sessions.confirm(number, cap_bytes),
        }
    }

    /// How much free memory the driver has, as a session or the driver's monitoring reports, whichever is more.
    fn free_bytes(&self, reported_bytes: u64) -> u64 {
        let monitored = self.monitored.as_ref().and_then(Monitored::free_bytes);
        let free_bytes = reported_bytes.max(monitored.unwrap_or(0));
        free_bytes.min(self.sessions.usable_bytes)
    }

    fn on_end(&mut self, number: u64) {
        self.sessions.charge(number);
        self.set_fixed(number, 0);
        if self.sessions.remove(number) {
            self.handle(Event::Left(number));
        }
    }

    fn set_fixed(&mut self, number: u64, bytes: u64) {
        let Some(change) = self.sessions.set_fixed(number, bytes) else {
            return;
        };
        if change.before_bytes > 0 {
            self.handle(Event::Left(FIXED | number));
        }
        if change.bytes > 0 {
            self.join(FIXED | number, change.token, change.bytes);
        }
    }

    // ---- the arbiter

    fn join(&mut self, session: SessionId, token: Token, fixed_bytes: u64) {
        let user = self.sessions.user(token).unwrap_or(0);
        self.handle(Event::Joined {
            session,
            user,
            fixed_bytes,
        });
    }

    fn rejoin(&mut self, session: SessionId, token: Token, fixed_bytes: u64) {
        self.handle(Event::Left(session));
        self.join(session, token, fixed_bytes);
    }

    fn handle(&mut self, event: Event) {
        let now = self.since.elapsed();
        let actions = self.arbiter.as_mut().map(|one| one.handle(event, now));
        for action in actions.unwrap_or_default() {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        let sessions = &mut self.sessions;
        match action {
            Action::Grant { session, epoch } => sessions.grant(session, epoch),
            Action::Preempt { session, epoch, .. } => {
                sessions.send(session, ToSession::Preempt { epoch });
            }
            Action::SwapOut { session, bytes } => {
                sessions.send(session, ToSession::SwapOut { bytes });
            }
            Action::SwapIn(session) => sessions.send(session, ToSession::SwapIn),
            Action::Pin { session, bytes } => sessions.send(session, ToSession::Pin { bytes }),
            Action::Unpin { session, bytes } => sessions.send(session, ToSession::Unpin { bytes }),
            Action::Trim(session) => sessions.send(session, ToSession::Trim),
            Action::Grow { session, bytes } => match self.rooms.answer(session, true) {
                // What is in a room cannot move, so a granted room becomes fixed memory.
                Some((token, bytes)) => self.rejoin(session, token, bytes),
                None => sessions.grow(session, bytes),
            },
            Action::Refuse { session, bytes } => {
                if self.rooms.answer(session, false).is_none() {
                    sessions.refuse(session, bytes);
                }
            }
            Action::End { session, reason } => sessions.kill(session, reason),
            Action::Release(session) => sessions.set_released(session, true),
        }
    }
}
