//! The sessions that share a GPU: their processes, what these have and how much they use the GPU.
//!
//! **Invariant:** it sends messages to processes, reads no files, and never asks the arbiter.

use super::{Arrival, Unheard};
use crate::gpu::{Admission, Lone, Token, Usage};
use baton_interposer::wire::ToSession;
use baton_scheduling::arbiter::{EndReason, Epoch, UserId};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::{BTreeMap, HashMap},
    iter,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

/// How many processes of a session may use the GPU at once. Each has a connection to the worker.
const PROCESSES: usize = 64;

/// A session may have this part of the GPU beyond its cap, for memory that the cap does not bound: loaded code,
/// contexts and graphs.
const UNCAPPED_PART: u64 = 8;

#[derive(Default)]
pub(super) struct Sessions {
    sessions: HashMap<Token, Session>,
    /// By the numbers of their connections.
    processes: BTreeMap<u64, Process>,
    /// How much of the GPU's memory all sessions may have; 0 until one has reported how large the GPU is.
    pub(super) usable_bytes: u64,
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
    inner_process: Pid,
    /// `None` once the connection is being closed.
    outgoing: Option<mpsc::Sender<ToSession>>,
    bytes: u64,
    fixed_bytes: u64,
    /// Whether the arbiter's ledger contains the memory that the process had when it connected.
    is_welcome: bool,
    /// Set while the process has not confirmed a new cap.
    unheard: Option<Unheard>,
    /// Whether its last request for memory has no answer yet.
    is_growing: bool,
    waits_since: Option<Instant>,
    holds_since: Option<Instant>,
}

/// A change of the memory of a process that cannot leave the GPU.
pub(super) struct FixedChange {
    /// The session.
    pub(super) token: Token,
    pub(super) before_bytes: u64,
    pub(super) bytes: u64,
}

impl Process {
    fn total_bytes(&self) -> u64 {
        self.bytes + self.fixed_bytes
    }
}

impl Sessions {
    pub(super) fn admit(&mut self, admission: Admission, released: watch::Sender<bool>) {
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

    pub(super) fn dismiss(&mut self, token: Token) {
        self.sessions.remove(&token);
        for number in self.processes_of(token) {
            self.cut_off(number);
        }
    }

    /// `None` for an unknown session.
    pub(super) fn user(&self, token: Token) -> Option<UserId> {
        Some(self.sessions.get(&token)?.admission.user)
    }

    pub(super) fn is_running(&self, token: Token) -> bool {
        let session = self.sessions.get(&token);
        session.is_some_and(|session| session.is_running)
    }

    /// Returns the session's processes.
    pub(super) fn set_running(&mut self, token: Token, is_running: bool) -> Vec<u64> {
        let Some(session) = self.sessions.get_mut(&token) else {
            return Vec::new();
        };
        session.is_running = is_running;
        if is_running {
            session.released.send_replace(false);
        }
        self.processes_of(token)
    }

    pub(super) fn set_released(&self, number: u64, released: bool) {
        let process = self.processes.get(&number);
        let session = process.and_then(|one| self.sessions.get(&one.token));
        if let Some(session) = session {
            session.released.send_replace(released);
        }
    }

    pub(super) fn note_bypass(&mut self, token: Token, process: Pid) {
        if let Some(session) = self.sessions.get_mut(&token) {
            tracing::warn!("Process {process} of a session uses the GPU without time-sharing");
            session.usage.bypassed = true;
        }
    }

    // ---- limits

    pub(super) fn limit(&mut self, token: Token, limit_bytes: Option<u64>, unheard: &Unheard) {
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

    /// The process has adopted this cap.
    pub(super) fn confirm(&mut self, number: u64, cap_bytes: u64) {
        let process = self.processes.get(&number);
        let is_current = process.is_some_and(|one| self.cap_bytes(one.token) == cap_bytes);
        if let Some(process) = self.processes.get_mut(&number).filter(|_| is_current) {
            process.unheard = None;
        }
    }

    /// How much the session may allocate, all its processes together.
    fn cap_bytes(&self, token: Token) -> u64 {
        let session = self.sessions.get(&token);
        let caps = session.map(|session| [session.admission.cap_bytes, session.limit_bytes]);
        let least = caps.into_iter().flatten().flatten().min();
        least.map_or(self.usable_bytes, |cap| cap.min(self.usable_bytes))
    }

    /// The most that the session may have or report, whatever it is for. Not bound by the current limit, because the
    /// session keeps what it had before.
    fn most_bytes(&self, token: Token) -> u64 {
        let session = self.sessions.get(&token);
        let cap_bytes = session.and_then(|session| session.admission.cap_bytes);
        let beyond = self.usable_bytes / UNCAPPED_PART;
        let most = cap_bytes.map_or(u64::MAX, |cap| cap.saturating_add(beyond));
        most.min(self.usable_bytes)
    }

    fn allocated_bytes(&self, token: Token) -> u64 {
        let of_it = self.processes.values();
        of_it
            .filter(|process| process.token == token)
            .map(Process::total_bytes)
            .sum()
    }

    // ---- processes

    /// Refuses the process if its session already has too many.
    pub(super) fn has_room_for(&self, arrival: &Arrival) -> bool {
        let has_room = self.processes_of(arrival.hello.token).len() < PROCESSES;
        if !has_room {
            tracing::warn!(
                "Process {} may not use the GPU, because {PROCESSES} processes of its session already do",
                arrival.process
            );
            // The channel is new, so it has room.
            let _ = arrival.outgoing.try_send(ToSession::Refuse { bytes: 0 });
        }
        has_room
    }

    pub(super) fn insert(&mut self, arrival: Arrival) {
        self.processes.insert(
            arrival.number,
            Process {
                token: arrival.hello.token,
                process: arrival.process,
                inner_process: arrival.inner_process,
                outgoing: Some(arrival.outgoing),
                bytes: 0,
                fixed_bytes: 0,
                is_welcome: false,
                unheard: None,
                is_growing: false,
                waits_since: None,
                holds_since: None,
            },
        );
    }

    /// Returns whether the process was there.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        self.processes.remove(&number).is_some()
    }

    /// The session of a process.
    pub(super) fn token(&self, number: u64) -> Option<Token> {
        Some(self.processes.get(&number)?.token)
    }

    pub(super) fn number(&self, process: Pid) -> Option<u64> {
        let mut all = self.processes.iter();
        all.find(|(_, one)| one.process == process)
            .map(|(number, _)| *number)
    }

    pub(super) fn all_processes(&self) -> Vec<Pid> {
        self.processes.values().map(|one| one.process).collect()
    }

    /// The session's only process that uses the GPU. `None` if there are several, or if it has memory that
    /// cannot move.
    pub(super) fn lone_process(&self, token: Token) -> Option<Lone> {
        let mut of_it = self.processes.iter().filter(|(_, one)| one.token == token);
        let (number, process) = of_it.next().filter(|(_, one)| one.fixed_bytes == 0)?;
        let lone = Lone {
            number: *number,
            pid: process.process,
        };
        of_it.next().is_none().then_some(lone)
    }

    fn processes_of(&self, token: Token) -> Vec<u64> {
        let of_it = self.processes.iter();
        of_it
            .filter(|(_, process)| process.token == token)
            .map(|(number, _)| *number)
            .collect()
    }

    /// Welcomes the process, unless that was done before.
    pub(super) fn welcome(&mut self, number: u64) {
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
    pub(super) fn send(&mut self, number: u64, message: ToSession) {
        if let Some(process) = self.processes.get(&number)
            && let Some(outgoing) = &process.outgoing
            && outgoing.try_send(message).is_err()
        {
            self.cut_off(number);
        }
    }

    pub(super) fn kill(&mut self, number: u64, reason: EndReason) {
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

    /// Closes the connection; [`super::Input::Left`] follows.
    fn cut_off(&mut self, number: u64) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.outgoing = None;
            process.unheard = None;
        }
    }

    // ---- memory

    /// Returns whether the session may allocate this much more; the process is refused otherwise.
    pub(super) fn may_grow(&mut self, number: u64, bytes: u64) -> bool {
        self.may_have(number, bytes, Self::cap_bytes)
    }

    /// The same for room for memory that does not count against the cap.
    pub(super) fn may_have_room(&mut self, number: u64, bytes: u64) -> bool {
        self.may_have(number, bytes, Self::most_bytes)
    }

    fn may_have(&mut self, number: u64, bytes: u64, most: impl Fn(&Self, Token) -> u64) -> bool {
        let may_have = self.token(number).is_some_and(|token| {
            self.allocated_bytes(token).saturating_add(bytes) <= most(self, token)
        });
        match self.processes.get_mut(&number) {
            Some(process) if may_have => process.is_growing = true,
            _ => self.send(number, ToSession::Refuse { bytes }),
        }
        may_have
    }

    pub(super) fn grow(&mut self, number: u64, bytes: u64) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.bytes += bytes;
            process.is_growing = false;
            if process.is_welcome {
                self.send(number, ToSession::Grow { bytes });
            }
        }
        self.welcome(number);
        self.note_peak(number);
    }

    pub(super) fn refuse(&mut self, number: u64, bytes: u64) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.is_growing = false;
            if process.is_welcome {
                self.send(number, ToSession::Refuse { bytes });
            }
        }
        self.welcome(number);
    }

    pub(super) fn shrink(&mut self, number: u64, bytes: u64) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.bytes = process.bytes.saturating_sub(bytes);
        }
    }

    /// Sets how much memory of the process cannot leave the GPU, within what its session may have. If that changes
    /// it, returns what has changed.
    pub(super) fn set_fixed(&mut self, number: u64, bytes: u64) -> Option<FixedChange> {
        let process = self.processes.get(&number)?;
        let (token, before_bytes) = (process.token, process.fixed_bytes);
        let others = self.allocated_bytes(token) - before_bytes;
        let bytes = bytes.min(self.most_bytes(token).saturating_sub(others));
        self.processes.get_mut(&number)?.fixed_bytes = bytes;
        self.note_peak(number);
        (before_bytes != bytes).then_some(FixedChange {
            token,
            before_bytes,
            bytes,
        })
    }

    // ---- usage

    /// Returns the usage until now, and starts a new count.
    pub(super) fn usage(&mut self, token: Token) -> Usage {
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

    /// The answer to a process that asks what its session has.
    pub(super) fn has(&self, token: Token) -> Vec<ToSession> {
        let of_it = || self.processes.values().filter(|one| one.token == token);
        let has = ToSession::Has {
            cap_bytes: self.cap_bytes(token),
            bytes: self.allocated_bytes(token),
            processes: of_it().count() as u32,
        };
        let process = |one: &Process| ToSession::ProcessHas {
            process: one.inner_process.as_raw().cast_unsigned(),
            bytes: one.total_bytes(),
        };
        iter::once(has).chain(of_it().map(process)).collect()
    }

    /// The process waits for a lease from now on, unless it did before.
    pub(super) fn wait(&mut self, number: u64) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.waits_since.get_or_insert_with(Instant::now);
        }
    }

    /// Whether a process of the session waits for a lease or for memory.
    pub(super) fn waits(&self, token: Token) -> bool {
        let mut of_it = self.processes.values().filter(|one| one.token == token);
        of_it.any(|one| one.is_growing || one.waits_since.is_some())
    }

    pub(super) fn grant(&mut self, number: u64, epoch: Epoch) {
        self.charge(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.waits_since = None;
            process.holds_since = Some(Instant::now());
        }
        self.send(number, ToSession::Grant { epoch });
    }

    pub(super) fn take_back(&mut self, number: u64) {
        self.charge(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.holds_since = None;
        }
    }

    /// Adds the time that the process has waited for or held the GPU until now.
    pub(super) fn charge(&mut self, number: u64) {
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

    pub(super) fn note(&mut self, number: u64, change: impl FnOnce(&mut Usage)) {
        let token = self.token(number);
        if let Some(session) = token.and_then(|token| self.sessions.get_mut(&token)) {
            change(&mut session.usage);
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
