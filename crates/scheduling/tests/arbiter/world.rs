//! Sessions and a GPU that carry out an arbiter's actions after delays, and check that each action is allowed.

mod checks;
mod places;
mod session;

use self::session::{Lease, Session};
use crate::script::{Happening, Script, Told};
use baton_scheduling::arbiter::{Action, Arbiter, Epoch, Event, Memory, SessionId, Settings};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

pub(crate) struct World {
    pub(crate) settings: Settings,
    arbiter: Arbiter,
    /// A second arbiter that gets the same events and makes no places ahead.
    twin: Option<Arbiter>,
    sessions: BTreeMap<SessionId, Session>,
    calendar: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    now: Duration,
    wake_at: Option<Duration>,
    entries: u64,
    /// Changes whenever the set of computing sessions does.
    version: u64,
    settled: Duration,
    drain: Duration,
    bandwidth: f64,
    /// One in this many moves to the GPU finds it full.
    in_the_way: Option<u64>,
    moves_in: u64,
    /// The size of a session's context, which the arbiter is not told.
    context_bytes: u64,
    /// The host's memory and the limits of sessions have not changed since the start, and the GPU has no
    /// contexts. So every session that was allowed to grow can return.
    is_steady: bool,
    pub(crate) told: Told,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            arbiter: Arbiter::new(settings.clone()),
            twin: None,
            settings,
            sessions: BTreeMap::new(),
            calendar: BinaryHeap::new(),
            now: Duration::ZERO,
            wake_at: None,
            entries: 0,
            version: 0,
            settled: Duration::ZERO,
            drain: Duration::from_millis(20),
            bandwidth: 50e9,
            in_the_way: None,
            moves_in: 0,
            context_bytes: 0,
            is_steady: true,
            told: Told::default(),
        }
    }

    pub(crate) fn with_memory(usable_bytes: u64, host_bytes: u64) -> Self {
        Self::new(Settings::new(Memory {
            usable_bytes,
            reserve_bytes: usable_bytes / 20,
            host_bytes,
        }))
    }

    pub(crate) fn sometimes_in_the_way(mut self, one_in: u64) -> Self {
        self.in_the_way = Some(one_in);
        self
    }

    pub(crate) fn with_contexts_of(mut self, bytes: u64) -> Self {
        self.context_bytes = bytes;
        self.is_steady &= bytes == 0;
        self
    }

    pub(crate) fn add(&mut self, session: SessionId, script: Script) {
        let joined = Event::Joined {
            session,
            user: script.user,
            fixed_bytes: 0,
        };
        if let Some(time) = script.dies_at {
            self.enter(time, Happening::Dies(session));
        }
        if let Some(cell) = script.cells.first() {
            self.enter(cell.edit, Happening::CellBegins(session));
        }
        let added = Session {
            script,
            is_resident: true,
            ..Session::default()
        };
        let (holds, host_limit) = (added.script.held > 0, added.script.host_limit);
        self.sessions.insert(session, added);
        self.handle(joined);
        if let Some(bytes) = host_limit {
            self.handle(Event::SessionHas { session, bytes });
        }
        if holds {
            self.handle(Event::CanTrim(session));
        }
    }

    /// Adds these sessions, numbered from 0.
    pub(crate) fn add_all(&mut self, scripts: Vec<Script>) {
        for (id, script) in (0..).zip(scripts) {
            self.add(id, script);
        }
    }

    /// From this time on, the host has this much memory left for sessions.
    pub(crate) fn host_has(&mut self, time: Duration, bytes: u64) {
        self.is_steady = false;
        self.enter(time, Happening::HostHas(bytes));
    }

    /// From this time on, its own limits leave it this much host memory.
    pub(crate) fn session_has(&mut self, time: Duration, session: SessionId, bytes: u64) {
        self.is_steady = false;
        self.enter(time, Happening::SessionHas(session, bytes));
    }

    /// Runs until nothing more happens, and checks that all cells have ended.
    pub(crate) fn run(&mut self) {
        self.run_until(Duration::MAX);
        for (id, session) in &self.sessions {
            let is_done = session.gone || session.next_cell == session.script.cells.len();
            assert!(
                is_done,
                "session {id} waits for ever: {session:?}\n{:?}",
                self.arbiter
            );
        }
    }

    pub(crate) fn run_until(&mut self, end: Duration) {
        let mut steps = 0;
        while let Some(Reverse((time, _, happening))) = self.calendar.pop() {
            if time > end {
                return;
            }
            steps += 1;
            assert!(
                steps < 100_000,
                "it goes round in circles: {:?}",
                self.arbiter
            );
            self.now = time;
            self.settle();
            self.happen(happening);
        }
    }

    pub(crate) fn seconds_of_moves(&self) -> f64 {
        self.told.moved_bytes as f64 / self.bandwidth
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Wakes => {
                if self.wake_at == Some(self.now) {
                    self.wake_at = None;
                    self.handle(Event::Woke);
                }
            }
            Happening::CellBegins(id) => self.begin_cell(id),
            Happening::CellDone(id, version) => {
                if version == self.version {
                    self.end_cell(id);
                }
            }
            Happening::Rests(id, epoch) => self.rest(id, epoch),
            Happening::MovedOut(id, bytes, is_last) => {
                let session = self.sessions.get_mut(&id).expect("it is known");
                if !session.gone {
                    session.moves = !is_last;
                    let bytes = bytes.min(session.bytes_there());
                    session.away += bytes;
                    let new = session.filled().saturating_sub(session.places);
                    session.places += new;
                    self.told.pinned_in_moves += new;
                    self.told.moved_bytes += bytes;
                    self.handle(Event::PartLeft { session: id, bytes });
                    if is_last {
                        self.handle(Event::SwappedOut(id));
                    }
                }
            }
            Happening::MovedIn(id) => self.move_in(id),
            Happening::Wants(id) => self.want(id),
            Happening::Fails(id) => self.end_cell(id),
            Happening::Asks(id, bytes) => {
                if !self.sessions[&id].gone {
                    self.handle(Event::Grew { session: id, bytes });
                }
            }
            Happening::FindsFull(session, bytes, free_bytes) => {
                let one = self.sessions.get_mut(&session).expect("it is known");
                one.not_found = 0;
                if !one.gone {
                    let swapped_out_bytes = if one.is_resident { 0 } else { bytes };
                    self.handle(Event::NotGrown {
                        session,
                        bytes,
                        swapped_out_bytes,
                        free_bytes,
                    });
                }
            }
            Happening::Dies(id) => self.die(id),
            Happening::Trims(id) => self.trim(id),
            Happening::HostHas(bytes) => self.handle(Event::HostHas { bytes }),
            Happening::SessionHas(session, bytes) => {
                if !self.sessions[&session].gone {
                    self.handle(Event::SessionHas { session, bytes });
                }
            }
            Happening::PlacesMade(id, number) => self.places_made(id, number),
            Happening::SaysPinned(id, bytes) => self.report_pinned(id, bytes),
            Happening::Sleeps(id) => {
                let session = self.sessions.get_mut(&id).expect("it is known");
                if !session.gone && !session.has_cell {
                    session.has_context = false;
                    session.sleeps = true;
                    self.handle(Event::Vacated(id));
                }
            }
        }
    }

    // ---- the life of a session

    fn begin_cell(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(&id).expect("it is known");
        if session.gone {
            return;
        }
        let cell = session.script.cells[session.next_cell];
        session.left = cell.compute;
        session.has_cell = true;
        session.has_context |= std::mem::take(&mut session.sleeps);
        session.waits_since = self.now;
        self.handle(Event::Expected(id));
        self.handle(Event::CellStarted(id));
        if cell.grow > 0 {
            self.handle(Event::Grew {
                session: id,
                bytes: cell.grow,
            });
        } else {
            self.want(id);
        }
    }

    fn want(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(&id).expect("it is known");
        if !session.gone {
            session.waits = true;
            session.has_context = true;
            self.handle(Event::Wanted(id));
        }
    }

    fn end_cell(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(&id).expect("it is known");
        if session.gone {
            return;
        }
        session.left = Duration::ZERO;
        session.waits = false;
        session.has_cell = false;
        if let Some(lease) = &mut session.lease {
            lease.computes = false;
        }
        self.told
            .responses
            .push((id, session.next_cell, self.now - session.waits_since));
        session.next_cell += 1;
        if let Some(cell) = session.script.cells.get(session.next_cell) {
            let begins = self.now + cell.edit + self.drain * 2;
            self.enter(begins, Happening::CellBegins(id));
        }
        self.reschedule();
        self.handle(Event::CellEnded(id));
    }

    /// A session does not react while its cell computes.
    fn trim(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(&id).expect("it is known");
        if session.gone || session.has_cell || session.moves {
            return;
        }
        let bytes = session.script.held.min(session.bytes);
        session.bytes -= bytes;
        let away_bytes = bytes.min(session.away);
        session.away -= away_bytes;
        session.on_paper -= away_bytes.min(session.on_paper);
        session.places = session.places.min(session.bytes);
        self.handle(Event::Shrank {
            session: id,
            bytes,
            swapped_out_bytes: away_bytes,
        });
        self.handle(Event::Trimmed(id));
    }

    fn rest(&mut self, id: SessionId, epoch: Epoch) {
        let session = self.sessions.get_mut(&id).expect("it is known");
        if session.gone {
            return;
        }
        session.lease = None;
        if session.left > Duration::ZERO {
            self.want(id);
        }
        self.handle(Event::Yielded { session: id, epoch });
    }

    fn move_in(&mut self, id: SessionId) {
        self.moves_in += 1;
        let is_in_the_way = self
            .in_the_way
            .is_some_and(|one_in| self.is_unlucky(one_in));
        let free = self.free_bytes(id);
        let session = self.sessions.get_mut(&id).expect("it is known");
        if session.gone {
            return;
        }
        session.moves = false;
        if is_in_the_way {
            session.is_resident = false;
            self.handle(Event::NotSwappedIn(id));
        } else if session.bytes > free {
            session.is_resident = false;
            let bytes = session.away;
            let free_bytes = (free + session.away).saturating_sub(session.bytes);
            self.handle(Event::NoRoom {
                session: id,
                bytes,
                free_bytes,
            });
        } else {
            session.on_paper = 0;
            self.told.moved_bytes += std::mem::take(&mut session.away);
            self.handle(Event::SwappedIn(id));
        }
    }

    /// Free GPU memory, except for what `id` has or is about to have.
    fn free_bytes(&self, id: SessionId) -> u64 {
        let of_others = |(other, session): (&SessionId, &Session)| {
            if *other == id {
                0
            } else {
                session.bytes_there()
            }
        };
        let contexts = self.sessions.values().filter(|one| one.has_context);
        let used: u64 = self.sessions.iter().map(of_others).sum::<u64>()
            + contexts.count() as u64 * self.context_bytes;
        self.settings.memory.usable_bytes.saturating_sub(used)
    }

    /// What was granted may not be available.
    fn grow(&mut self, id: SessionId, bytes: u64) {
        let free = self.free_bytes(id);
        let session = self.sessions.get_mut(&id).expect("it is known");
        session.has_context = true;
        if !session.is_resident || session.bytes + bytes <= free {
            session.bytes += bytes;
            if !session.is_resident {
                session.away += bytes;
                session.on_paper += bytes;
            }
            self.enter(self.now, Happening::Wants(id));
            return;
        }
        session.not_found = bytes;
        let free_bytes = free - session.bytes.min(free);
        // Scheduled, so that the arbiter's other actions are carried out first.
        self.enter(self.now, Happening::FindsFull(id, bytes, free_bytes));
        self.enter(
            self.now + Duration::from_millis(20),
            Happening::Asks(id, bytes),
        );
    }

    /// Pseudo-random, so that the moves of two sessions do not fall into step.
    fn is_unlucky(&self, one_in: u64) -> bool {
        let scattered = self.moves_in.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        scattered.is_multiple_of(one_in)
    }

    fn die(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(&id).expect("it is known");
        if !session.gone {
            *session = Session {
                gone: true,
                ..Session::default()
            };
            self.reschedule();
            self.handle(Event::Left(id));
        }
    }

    // ---- the arbiter

    fn handle(&mut self, event: Event) {
        let said = self.arbiter.handle(event, self.now);
        self.check_twin(event, &said);
        for action in said {
            self.check(event, action);
            self.carry_out(action);
        }
        self.check_memory();
        let wake_at = self.arbiter.wake_at();
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            if let Some(time) = wake_at {
                assert!(time > self.now);
                self.enter(time, Happening::Wakes);
            }
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Grant { session: id, epoch } => {
                let session = self.sessions.get_mut(&id).expect("it is known");
                session.waits = false;
                session.lease = Some(Lease {
                    epoch,
                    computes: true,
                });
                self.told.hand_overs += 1;
                self.reschedule();
            }
            Action::Preempt {
                session: id, epoch, ..
            } => {
                let session = self.sessions.get_mut(&id).expect("it is known");
                if session.script.is_deaf && session.left > Duration::ZERO {
                    return;
                }
                session.lease.as_mut().expect("it has a lease").computes = false;
                self.enter(self.now + self.drain, Happening::Rests(id, epoch));
                self.reschedule();
            }
            Action::SwapOut { session: id, bytes } => {
                self.stop_making(id);
                let session = self.sessions.get_mut(&id).expect("it is known");
                (session.moves, session.is_resident) = (true, false);
                // Memory is moved in whole parts.
                let bytes = bytes
                    .next_multiple_of(self.settings.part_bytes)
                    .min(session.bytes - session.away);
                let parts = [bytes / 2, bytes - bytes / 2];
                if !session.script.is_stuck {
                    let (half, whole) = (self.time_of(parts[0]), self.time_of(bytes));
                    self.enter(half, Happening::MovedOut(id, parts[0], false));
                    self.enter(whole, Happening::MovedOut(id, parts[1], true));
                }
            }
            Action::SwapIn(id) => {
                self.stop_making(id);
                let session = self.sessions.get_mut(&id).expect("it is known");
                (session.moves, session.is_resident) = (true, true);
                let (bytes, is_stuck) = (session.away, session.script.is_stuck);
                if !is_stuck {
                    let time = self.time_of(bytes);
                    self.enter(time, Happening::MovedIn(id));
                }
            }
            Action::Pin { session, bytes } => self.pin(session, bytes),
            Action::Unpin { session, bytes } => self.unpin(session, bytes),
            Action::Trim(id) => self.enter(self.now + self.drain, Happening::Trims(id)),
            Action::Grow { session: id, bytes } => self.grow(id, bytes),
            Action::Refuse { session: id, .. } => {
                self.told.refused.push(id);
                self.enter(self.now, Happening::Fails(id));
            }
            Action::End { session: id, .. } => {
                self.told.ended.push(id);
                self.enter(self.now, Happening::Dies(id));
            }
            Action::Release(id) => {
                self.told.released.push(id);
                let session = &self.sessions[&id];
                let next = session.script.cells.get(session.next_cell);
                let stirs = next.is_none_or(|cell| cell.grow == 0);
                let leaves_at = self.now + session.script.leaves_in;
                if session.script.can_sleep {
                    if stirs {
                        // A thread that keeps running between cells.
                        self.enter(self.now, Happening::Wants(id));
                    }
                    self.enter(leaves_at, Happening::Sleeps(id));
                } else {
                    self.enter(leaves_at, Happening::Dies(id));
                }
            }
        }
    }

    /// When a move of this many bytes ends if it begins now.
    fn time_of(&self, bytes: u64) -> Duration {
        self.now + Duration::from_secs_f64(bytes as f64 / self.bandwidth)
    }

    // ---- time

    fn enter(&mut self, time: Duration, happening: Happening) {
        self.entries += 1;
        self.calendar.push(Reverse((time, self.entries, happening)));
    }

    /// All computing sessions progress at the same pace.
    fn settle(&mut self) {
        let elapsed = self.now - self.settled;
        self.settled = self.now;
        let computing = self.computing().count() as u32;
        for (id, session) in &mut self.sessions {
            if session.lease.is_some_and(|lease| lease.computes) {
                session.left = session.left.saturating_sub(elapsed / computing);
                *self.told.computed.entry(*id).or_default() += elapsed / computing;
            }
        }
    }

    fn reschedule(&mut self) {
        self.version += 1;
        let computing: Vec<_> = self
            .computing()
            .map(|(id, session)| (*id, session.left))
            .collect();
        self.told.most_together = self.told.most_together.max(computing.len());
        for (id, left) in &computing {
            let done = self.now + *left * computing.len() as u32;
            self.enter(done, Happening::CellDone(*id, self.version));
        }
    }

    fn computing(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.sessions
            .iter()
            .filter(|(_, session)| session.lease.is_some_and(|lease| lease.computes))
    }
}
