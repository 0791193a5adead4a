//! GPUs and their sessions, simulated event by event: cells come from the [`Queue`] and compute as
//! the arbiters decide.

use super::{Class, LONG, Policy, SHORT, queue::Queue};
use crate::simulation::{Length, statistics::Spread};
use baton_scheduling::arbiter::{Action, Arbiter, Epoch, Event, Memory, SessionId};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

/// Work that remains because times are rounded to nanoseconds, in seconds.
const PRECISION: f64 = 1e-6;

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) cells: u64,
    /// Cells that began on a GPU without their session.
    pub(super) moved: u64,
    pub(super) short: Spread,
    /// Slowdowns, not times.
    pub(super) medium: Spread,
    pub(super) long: Spread,
    /// Busy seconds of all GPUs together.
    pub(super) busy: f64,
}

/// Events of sessions that have ended are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Submits(usize),
    IsReady(SessionId),
    /// The end of this lease. Ignored if the lease ended earlier, or if other sessions slowed it down.
    Ends(SessionId, Epoch),
    ComesToRest(SessionId, Epoch),
    MovedOut(SessionId),
    MovedIn(SessionId),
    /// The request to pin with this number is done. Ignored if the request was interrupted.
    Pinned(SessionId, u64),
    /// The session reports this many pinned bytes.
    SaysPinned(SessionId, u64),
    /// A timer of this GPU's arbiter.
    Wakes(usize),
}

#[derive(Debug)]
struct Gpu {
    arbiter: Arbiter,
    wake_at: Option<Duration>,
    /// People whose sessions have a lease.
    computing: Vec<usize>,
}

/// A person's session, with its cell.
#[derive(Debug, Clone)]
struct Session {
    /// The person's number, plus the number of people times the number of the person's earlier sessions.
    id: SessionId,
    gpu: usize,
    cell: f64,
    left: f64,
    submitted: Duration,
    begun: Duration,
    /// The part of its memory that is on the host.
    away_bytes: u64,
    /// Host memory that is pinned for its memory on the GPU.
    places_bytes: u64,
    /// The request to pin ahead that it is carrying out: its number and its bytes.
    pinning: Option<(u64, u64)>,
    /// Present while it computes.
    lease: Option<Epoch>,
}

pub(super) struct World<'class> {
    class: &'class Class,
    queue: Queue,
    random: Xoshiro256PlusPlus,
    now: Duration,
    settled: Duration,
    gpus: Vec<Gpu>,
    /// Indexed by person.
    sessions: Vec<Session>,
    calendar: BinaryHeap<Reverse<(Duration, Happening)>>,
    pins: u64,
    length: Length,
    seen: Seen,
}

impl<'class> World<'class> {
    pub(super) fn new(class: &'class Class, policy: Policy, length: Length, seed: u64) -> Self {
        let memory = Memory {
            usable_bytes: class.gpu_bytes,
            reserve_bytes: 0,
            // Enough for all memory, even while places are made ahead.
            host_bytes: 2 * class.session_bytes * class.people as u64,
        };
        let gpu = |_| Gpu {
            arbiter: Arbiter::new(policy.settings(memory.clone())),
            wake_at: None,
            computing: Vec::new(),
        };
        let session = |person: usize| Session {
            id: person as SessionId,
            gpu: person % class.gpus,
            cell: 0.0,
            left: 0.0,
            submitted: Duration::ZERO,
            begun: Duration::ZERO,
            away_bytes: 0,
            places_bytes: 0,
            pinning: None,
            lease: None,
        };
        let is_fair = policy == Policy::Baton;
        Self {
            class,
            queue: Queue::new(class.people, class.gpus, class.slots, is_fair),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            now: Duration::ZERO,
            settled: Duration::ZERO,
            gpus: (0..class.gpus).map(gpu).collect(),
            sessions: (0..class.people).map(session).collect(),
            calendar: BinaryHeap::new(),
            pins: 0,
            length,
            seen: Seen {
                cells: 0,
                moved: 0,
                short: Spread::new(),
                medium: Spread::new(),
                long: Spread::new(),
                busy: 0.0,
            },
        }
    }

    pub(super) fn run(mut self) -> Seen {
        for person in 0..self.class.people {
            self.join(person);
            self.edit(person);
        }
        let end = Duration::from_secs_f64(self.length.warm_up + self.length.measured);
        while let Some(Reverse((time, happening))) = self.calendar.pop() {
            if time > end {
                break;
            }
            self.now = time;
            self.settle();
            self.happen(happening);
        }
        self.seen
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Submits(person) => self.submit(person),
            Happening::IsReady(id) => self.start(self.person_of(id)),
            Happening::Ends(id, epoch) => {
                let person = self.person_of(id);
                let Session {
                    id: own,
                    lease,
                    left,
                    ..
                } = self.sessions[person];
                if own == id && lease == Some(epoch) && left < PRECISION {
                    self.end(person);
                }
            }
            Happening::ComesToRest(session, epoch) => {
                self.send_of(session, Event::Wanted(session));
                self.send_of(session, Event::Yielded { session, epoch });
            }
            Happening::MovedOut(id) => self.send_of(id, Event::SwappedOut(id)),
            Happening::MovedIn(id) => self.send_of(id, Event::SwappedIn(id)),
            Happening::Pinned(id, number) => {
                let Session {
                    id: own, pinning, ..
                } = self.sessions[self.person_of(id)];
                if own == id && pinning.is_some_and(|(order, _)| order == number) {
                    self.end_pinning(id, 1.0);
                }
            }
            Happening::SaysPinned(session, bytes) => {
                self.send_of(session, Event::Pinned { session, bytes });
            }
            Happening::Wakes(gpu) => {
                if self.gpus[gpu].wake_at == Some(self.now) {
                    self.gpus[gpu].wake_at = None;
                    self.send(gpu, Event::Woke);
                }
            }
        }
    }

    fn join(&mut self, person: usize) {
        let Session { id, gpu, .. } = self.sessions[person];
        let joined = Event::Joined {
            session: id,
            user: person as u64,
            fixed_bytes: 0,
        };
        self.send(gpu, joined);
        let bytes = self.class.session_bytes;
        self.send(gpu, Event::Grew { session: id, bytes });
    }

    fn edit(&mut self, person: usize) {
        let time = self.class.edit.draw(&mut self.random);
        self.enter(time, Happening::Submits(person));
    }

    fn submit(&mut self, person: usize) {
        let cell = self.class.run.draw(&mut self.random);
        let session = &mut self.sessions[person];
        (session.cell, session.left) = (cell, cell);
        session.submitted = self.now;
        self.queue.submit(person, self.now);
        self.begin();
    }

    /// Begins the cells that the broker assigns now.
    fn begin(&mut self) {
        for (person, gpu) in self.queue.begin(self.now) {
            self.sessions[person].begun = self.now;
            if self.sessions[person].gpu == gpu {
                self.start(person);
            } else {
                self.move_to(gpu, person);
            }
        }
    }

    /// Ends the session, and begins a new one with the notebook's state elsewhere.
    fn move_to(&mut self, gpu: usize, person: usize) {
        let Session { id, gpu: last, .. } = self.sessions[person];
        self.send(last, Event::Left(id));
        let session = &mut self.sessions[person];
        session.id += self.class.people as SessionId;
        session.gpu = gpu;
        (session.away_bytes, session.places_bytes, session.pinning) = (0, 0, None);
        let id = session.id;
        self.queue.moves(person, gpu);
        self.join(person);
        self.enter(self.class.cold, Happening::IsReady(id));
        if self.now.as_secs_f64() > self.length.warm_up {
            self.seen.moved += 1;
        }
    }

    fn start(&mut self, person: usize) {
        let Session { id, gpu, .. } = self.sessions[person];
        self.send(gpu, Event::CellStarted(id));
        self.send(gpu, Event::Wanted(id));
    }

    fn end(&mut self, person: usize) {
        let session = &mut self.sessions[person];
        let epoch = session.lease.take().expect("it computed");
        let Session {
            id,
            gpu,
            cell,
            submitted,
            begun,
            ..
        } = *session;
        self.gpus[gpu].computing.retain(|other| *other != person);
        let now = self.now.as_secs_f64();
        let response = now - submitted.as_secs_f64();
        if now > self.length.warm_up {
            self.seen.cells += 1;
            if cell < SHORT {
                self.seen.short.add(response);
            } else if cell < LONG {
                self.seen.medium.add(response / cell);
            } else {
                self.seen.long.add(response / cell);
            }
        }
        self.reschedule(gpu);
        self.send(gpu, Event::CellEnded(id));
        self.send(gpu, Event::Yielded { session: id, epoch });
        self.edit(person);
        self.queue.end(person, self.now - begun, self.now);
        self.begin();
    }

    /// Passes the event on, unless the session has ended.
    fn send_of(&mut self, id: SessionId, event: Event) {
        let session = &self.sessions[self.person_of(id)];
        if session.id == id {
            self.send(session.gpu, event);
        }
    }

    fn send(&mut self, gpu: usize, event: Event) {
        for action in self.gpus[gpu].arbiter.handle(event, self.now) {
            self.carry_out(gpu, action);
        }
        let wake_at = self.gpus[gpu].arbiter.wake_at();
        if wake_at != self.gpus[gpu].wake_at {
            self.gpus[gpu].wake_at = wake_at;
            if let Some(time) = wake_at {
                self.calendar.push(Reverse((time, Happening::Wakes(gpu))));
            }
        }
    }

    fn carry_out(&mut self, gpu: usize, action: Action) {
        match action {
            Action::Grant { session, epoch } => {
                let person = self.person_of(session);
                self.sessions[person].lease = Some(epoch);
                self.gpus[gpu].computing.push(person);
                self.reschedule(gpu);
            }
            Action::Preempt { session, epoch, .. } => {
                let person = self.person_of(session);
                // A cell that has ended has no work in flight, and reports that itself.
                if self.sessions[person].lease.take().is_some() {
                    self.gpus[gpu].computing.retain(|other| *other != person);
                    self.enter(self.class.drain, Happening::ComesToRest(session, epoch));
                    self.reschedule(gpu);
                }
            }
            Action::SwapOut { session, bytes } => {
                self.end_pinning(session, 0.0);
                let person = self.person_of(session);
                let one = &mut self.sessions[person];
                one.away_bytes += bytes;
                let new_places = one.away_bytes.saturating_sub(one.places_bytes);
                one.places_bytes += new_places;
                let time = self.move_time(bytes) + self.pin_time(new_places);
                self.enter(time, Happening::MovedOut(session));
            }
            Action::SwapIn(id) => {
                self.end_pinning(id, 0.0);
                let person = self.person_of(id);
                let bytes = std::mem::take(&mut self.sessions[person].away_bytes);
                self.enter(self.move_time(bytes), Happening::MovedIn(id));
            }
            Action::Pin { session, bytes } => {
                self.pins += 1;
                let person = self.person_of(session);
                self.sessions[person].pinning = Some((self.pins, bytes));
                self.enter(self.pin_time(bytes), Happening::Pinned(session, self.pins));
            }
            Action::Unpin { session, bytes } => {
                let missing = self.end_pinning(session, 0.0);
                let person = self.person_of(session);
                let one = &mut self.sessions[person];
                let empty = one.places_bytes - one.away_bytes;
                one.places_bytes -= bytes.saturating_sub(missing).min(empty);
            }
            Action::Grow { .. } => {}
            Action::Refuse { .. } | Action::End { .. } | Action::Release(_) | Action::Trim(_) => {
                unreachable!(
                    "each session fits, uses all it has, and comes to rest in time: {action:?}"
                )
            }
        }
    }

    /// Ends a session's request to pin, with this part of its places made. Returns how many bytes are not made.
    ///
    /// The session answers later, because the arbiter is handling an event now.
    fn end_pinning(&mut self, id: SessionId, part: f64) -> u64 {
        let person = self.person_of(id);
        let one = &mut self.sessions[person];
        let Some((_, bytes)) = one.pinning.take() else {
            return 0;
        };
        let pinned = (bytes as f64 * part) as u64;
        one.places_bytes += pinned;
        self.enter(0.0, Happening::SaysPinned(id, pinned));
        bytes - pinned
    }

    fn pin_time(&self, bytes: u64) -> f64 {
        bytes as f64 / self.class.pinning
    }

    fn move_time(&self, bytes: u64) -> f64 {
        bytes as f64 / self.class.bandwidth
    }

    /// Sessions that compute together share their GPU.
    fn settle(&mut self) {
        let elapsed = (self.now - self.settled).as_secs_f64();
        self.settled = self.now;
        let counts = self.now.as_secs_f64() > self.length.warm_up;
        for gpu in &self.gpus {
            let computing = gpu.computing.len();
            if computing > 0 && counts {
                self.seen.busy += elapsed;
            }
            for person in &gpu.computing {
                self.sessions[*person].left -= elapsed / computing as f64;
            }
        }
    }

    fn reschedule(&mut self, gpu: usize) {
        let computing = &self.gpus[gpu].computing;
        for person in computing {
            let Session {
                id, left, lease, ..
            } = self.sessions[*person];
            if let Some(epoch) = lease {
                let left = left.max(0.0) * computing.len() as f64;
                let time = self.now + Duration::from_secs_f64(left);
                self.calendar
                    .push(Reverse((time, Happening::Ends(id, epoch))));
            }
        }
    }

    fn person_of(&self, id: SessionId) -> usize {
        id as usize % self.class.people
    }

    fn enter(&mut self, delay: f64, happening: Happening) {
        let time = self.now + Duration::from_secs_f64(delay);
        self.calendar.push(Reverse((time, happening)));
    }
}
