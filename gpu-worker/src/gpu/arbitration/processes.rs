//! Processes of sessions: their arrival, their messages and their end.

use super::{Arbitration, Arrival, Process};
use crate::gpu::{Lone, Monitored, Token};
use baton_interposer::wire::{FromSession, ToSession};
use baton_scheduling::arbiter::{Arbiter, Event, SessionId};
use tokio::time::Instant;

/// Marks the ids of the arbiter's sessions that stand for memory that cannot leave the GPU.
const FIXED: SessionId = 1 << 63;

/// How many processes of a session may use the GPU at once. Each has a connection to the worker.
const PROCESSES: usize = 64;

/// More than any GPU has.
const MOST_BYTES: u64 = 1 << 48;

impl Arbitration {
    pub(super) fn on_arrival(&mut self, arrival: Arrival) {
        let Arrival {
            number,
            hello,
            process,
            outgoing,
        } = arrival;
        let Some(session) = self.sessions.get(&hello.token) else {
            tracing::warn!("Process {process} wants to use the GPU for an unknown session");
            return;
        };
        if (self.monitored.as_ref()).is_some_and(|gpu| gpu.is_another(hello.device)) {
            tracing::warn!(
                "Process {process} uses a GPU that is not its session's, without time-sharing"
            );
            return;
        }
        if self.processes_of(hello.token).len() >= PROCESSES {
            tracing::warn!(
                "Process {process} may not use the GPU, because {PROCESSES} processes of its session already do"
            );
            // The channel is new, so it has room.
            let _ = outgoing.try_send(ToSession::Refuse { bytes: 0 });
            return;
        }
        if self.arbiter.is_none() && hello.total_bytes == 0 {
            return;
        }
        if let Some(make) = self.settings.take() {
            let settings = make(hello.total_bytes.min(MOST_BYTES));
            self.usable_bytes = settings.memory.usable_bytes;
            self.arbiter = Some(Arbiter::new(settings));
        }
        let (user, is_running) = (session.admission.user, session.is_running);
        self.processes.insert(
            number,
            Process {
                token: hello.token,
                process,
                outgoing: Some(outgoing),
                bytes: 0,
                fixed_bytes: 0,
                is_welcome: false,
                unheard: None,
                waits_since: None,
                holds_since: None,
            },
        );
        self.handle(Event::Joined {
            session: number,
            user,
            fixed_bytes: 0,
        });
        self.arrivals.notify_one();
        if hello.is_away {
            self.handle(Event::NotSwappedIn(number));
        }
        let bytes = hello.bytes.min(self.usable_bytes);
        if bytes > 0 {
            self.handle(Event::Grew {
                session: number,
                bytes,
            });
        } else {
            self.welcome(number);
        }
        self.set_fixed(number, hello.fixed_bytes);
        if is_running {
            self.handle(Event::CellStarted(number));
        }
    }

    pub(super) fn on_message(&mut self, number: u64, message: FromSession) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let session = number;
        match message {
            FromSession::Hello(_) | FromSession::Look { .. } => {}
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
                    self.send(number, ToSession::Refuse { bytes });
                } else {
                    self.handle(Event::Grew { session, bytes });
                }
            }
            FromSession::Shrank { bytes, away_bytes } => {
                process.bytes = process.bytes.saturating_sub(bytes);
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
                self.note(number, |usage| {
                    usage.moved(bytes, nanoseconds);
                    usage.pinned_in_moves(new_place_bytes);
                });
                self.handle(Event::SwappedOut(number));
            }
            FromSession::SwappedIn { bytes, nanoseconds } => {
                self.note(number, |usage| {
                    usage.swaps += 1;
                    usage.moved(bytes, nanoseconds);
                });
                self.handle(Event::SwappedIn(number));
            }
            FromSession::Pinned { bytes } => {
                self.note(number, |usage| usage.pinned_ahead(bytes));
                self.handle(Event::Pinned { session, bytes });
            }
            FromSession::CanTrim => self.handle(Event::CanTrim(number)),
            FromSession::Trimmed => self.handle(Event::Trimmed(number)),
            FromSession::NotSwappedIn => self.handle(Event::NotSwappedIn(number)),
            FromSession::NoRoom { bytes, free_bytes } => {
                self.on_full(number, bytes, free_bytes);
            }
            FromSession::NotGrown { bytes, free_bytes } => {
                process.bytes = process.bytes.saturating_sub(bytes);
                self.on_full(number, bytes, free_bytes);
            }
            FromSession::Fault { code } => {
                self.note(number, |usage| usage.fault = Some(code));
            }
            FromSession::Capped { cap_bytes } => {
                let token = process.token;
                if cap_bytes == self.cap_bytes(token)
                    && let Some(process) = self.processes.get_mut(&number)
                {
                    process.unheard = None;
                }
            }
        }
    }

    /// Uses the driver's monitoring if it reports more free memory than the session does.
    pub(super) fn on_full(&mut self, session: u64, needed_bytes: u64, free_bytes: u64) {
        let monitored = self.monitored.as_ref().and_then(Monitored::free_bytes);
        self.handle(Event::Full {
            session,
            needed_bytes: needed_bytes.min(self.usable_bytes),
            free_bytes: free_bytes
                .max(monitored.unwrap_or(0))
                .min(self.usable_bytes),
        });
    }

    pub(super) fn on_end(&mut self, number: u64) {
        self.charge(number);
        self.set_fixed(number, 0);
        if self.processes.remove(&number).is_some() {
            self.handle(Event::Left(number));
        }
    }

    pub(super) fn set_fixed(&mut self, number: u64, bytes: u64) {
        let bytes = bytes.min(self.usable_bytes);
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

    pub(super) fn processes_of(&self, token: Token) -> Vec<u64> {
        let of_it = self.processes.iter();
        of_it
            .filter(|(_, process)| process.token == token)
            .map(|(number, _)| *number)
            .collect()
    }
}
