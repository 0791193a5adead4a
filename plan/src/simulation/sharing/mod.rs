//! One GPU and its sessions under a policy of sharing, event by event.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    time::Duration,
};

use baton_arbiter::{Action, Arbiter, Epoch, Event, Memory, SessionId, Settings};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{Estimate, Length, Runs, Times, on_all_cores, statistics::Spread};

/// People who share one GPU; each has one session.
#[derive(Debug, Clone)]
pub struct Class {
    pub people: usize,
    pub edit: Times,
    /// GPU time of a cell.
    pub run: Times,
    pub session_bytes: u64,
    pub gpu_bytes: u64,
    /// Between GPU and host, each way; bytes a second.
    pub bandwidth: f64,
    /// From being told to stop until nothing is in flight, in seconds.
    pub drain: f64,
}

/// Who computes when. All are ways to set the same [`Arbiter`], so they differ in nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Each cell to its end, in order of arrival.
    FirstCome,
    /// Everybody in turn, for so many seconds.
    RoundRobin(f64),
    /// As on a worker.
    Baton,
}

impl Policy {
    fn settings(self, memory: Memory) -> Settings {
        let ours = Settings::new(memory);
        let slice = match self {
            Self::Baton => return ours,
            Self::FirstCome => Duration::from_secs(1_000_000_000),
            Self::RoundRobin(slice) => Duration::from_secs_f64(slice),
        };
        Settings {
            levels: [Duration::ZERO; 3],
            slice,
            guaranteed_share: 0.0,
            half_life: Duration::from_nanos(1),
            swap_floor: 0.0,
            together: 1,
            ..ours
        }
    }
}

/// Below this many seconds of GPU time a cell is short, above [`LONG`] it is long.
pub const SHORT: f64 = 5.0;
pub const LONG: f64 = 60.0;

/// Work that is left over by rounding times to nanoseconds, in seconds.
const PRECISION: f64 = 1e-6;

/// What a class sees of its GPU.
#[derive(Debug)]
pub struct Shared {
    pub cells: u64,
    /// From submission to end of short cells, in seconds: mean, and within which 50, 95 and 99 of 100 lie.
    pub short: [Estimate; 4],
    /// How many times as long as alone on the GPU the others take.
    pub medium_slowdown: Estimate,
    pub long_slowdown: Estimate,
    /// The part of the time that somebody computes.
    pub utilisation: Estimate,
}

/// Cells of `class` under `policy`.
#[must_use]
pub fn share(class: &Class, policy: Policy, length: Length, runs: Runs) -> Shared {
    let runs = on_all_cores(runs, |seed| World::new(class, policy, length, seed).run());
    let estimate = |what: &dyn Fn(&Seen) -> f64| Estimate::of(runs.iter().map(what));
    let short = |part: f64| estimate(&|seen| seen.short.percentile(part));
    Shared {
        cells: runs.iter().map(|seen| seen.cells).sum(),
        short: [
            estimate(&|seen| seen.short.mean()),
            short(0.5),
            short(0.95),
            short(0.99),
        ],
        medium_slowdown: estimate(&|seen| seen.medium.mean()),
        long_slowdown: estimate(&|seen| seen.long.mean()),
        utilisation: estimate(&|seen| seen.busy / length.measured),
    }
}

#[derive(Debug)]
struct Seen {
    cells: u64,
    short: Spread,
    /// Slowdowns, not times.
    medium: Spread,
    long: Spread,
    busy: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Submits(SessionId),
    /// With the number of the lease: of no effect when it ended before, or when others slowed it down.
    Ends(SessionId, Epoch),
    ComesToRest(SessionId, Epoch),
    MovedOut(SessionId),
    MovedIn(SessionId),
    Wakes,
}

#[derive(Debug, Clone, Default)]
struct Session {
    cell: f64,
    left: f64,
    submitted: f64,
    /// While it computes.
    lease: Option<Epoch>,
}

struct World<'class> {
    class: &'class Class,
    arbiter: Arbiter,
    random: Xoshiro256PlusPlus,
    now: Duration,
    settled: Duration,
    wake_at: Option<Duration>,
    sessions: Vec<Session>,
    /// Those who have a lease, by number.
    computing: BTreeSet<SessionId>,
    calendar: BinaryHeap<Reverse<(Duration, Happening)>>,
    length: Length,
    seen: Seen,
}

impl<'class> World<'class> {
    fn new(class: &'class Class, policy: Policy, length: Length, seed: u64) -> Self {
        let memory = Memory {
            usable_bytes: class.gpu_bytes,
            reserve_bytes: 0,
            host_bytes: class.session_bytes * class.people as u64,
        };
        Self {
            class,
            arbiter: Arbiter::new(policy.settings(memory)),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            now: Duration::ZERO,
            settled: Duration::ZERO,
            wake_at: None,
            sessions: vec![Session::default(); class.people],
            computing: BTreeSet::new(),
            calendar: BinaryHeap::new(),
            length,
            seen: Seen {
                cells: 0,
                short: Spread::new(),
                medium: Spread::new(),
                long: Spread::new(),
                busy: 0.0,
            },
        }
    }

    fn run(mut self) -> Seen {
        for session in 0..self.class.people as SessionId {
            self.tell(Event::Joined {
                session,
                user: session,
                fixed_bytes: 0,
            });
            self.tell(Event::Grew {
                session,
                bytes: self.class.session_bytes,
            });
            self.edit(session);
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
            Happening::Submits(id) => self.submit(id),
            Happening::Ends(id, epoch) => {
                let session = self.session(id);
                if session.lease == Some(epoch) && session.left < PRECISION {
                    self.end(id);
                }
            }
            Happening::ComesToRest(session, epoch) => {
                self.tell(Event::Wanted(session));
                self.tell(Event::Yielded { session, epoch });
            }
            Happening::MovedOut(id) => self.tell(Event::SwappedOut(id)),
            Happening::MovedIn(id) => self.tell(Event::SwappedIn(id)),
            Happening::Wakes => {
                if self.wake_at == Some(self.now) {
                    self.wake_at = None;
                    self.tell(Event::Woke);
                }
            }
        }
    }

    fn edit(&mut self, id: SessionId) {
        let time = self.class.edit.draw(&mut self.random);
        self.enter(time, Happening::Submits(id));
    }

    fn submit(&mut self, id: SessionId) {
        let cell = self.class.run.draw(&mut self.random);
        *self.session(id) = Session {
            cell,
            left: cell,
            submitted: self.now.as_secs_f64(),
            lease: None,
        };
        self.tell(Event::CellStarted(id));
        self.tell(Event::Wanted(id));
    }

    fn end(&mut self, id: SessionId) {
        let now = self.now.as_secs_f64();
        let session = self.session(id);
        let epoch = session.lease.take().expect("it computed");
        self.computing.remove(&id);
        let session = &self.sessions[id as usize];
        let (cell, response) = (session.cell, now - session.submitted);
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
        self.reschedule();
        self.tell(Event::CellEnded(id));
        self.tell(Event::Yielded { session: id, epoch });
        self.edit(id);
    }

    fn tell(&mut self, event: Event) {
        for action in self.arbiter.handle(event, self.now) {
            self.obey(action);
        }
        let wake_at = self.arbiter.wake_at();
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            if let Some(time) = wake_at {
                self.calendar.push(Reverse((time, Happening::Wakes)));
            }
        }
    }

    fn obey(&mut self, action: Action) {
        match action {
            Action::Grant { session, epoch } => {
                self.session(session).lease = Some(epoch);
                self.computing.insert(session);
                self.reschedule();
            }
            Action::Drop { session, epoch, .. } => {
                // A cell that has ended has nothing in flight, and says so itself.
                if self.session(session).lease.take().is_some() {
                    self.computing.remove(&session);
                    self.enter(self.class.drain, Happening::ComesToRest(session, epoch));
                    self.reschedule();
                }
            }
            Action::SwapOut(id) => self.enter(self.move_time(), Happening::MovedOut(id)),
            Action::SwapIn(id) => self.enter(self.move_time(), Happening::MovedIn(id)),
            Action::Grow { .. } => {}
            Action::Refuse { .. } | Action::End(_) => {
                unreachable!("each session fits, and comes to rest in time: {action:?}")
            }
        }
    }

    fn move_time(&self) -> f64 {
        self.class.session_bytes as f64 / self.class.bandwidth
    }

    /// Those who compute together share the GPU.
    fn settle(&mut self) {
        let elapsed = (self.now - self.settled).as_secs_f64();
        self.settled = self.now;
        let computing = self.computing.len();
        if computing == 0 {
            return;
        }
        if self.now.as_secs_f64() > self.length.warm_up {
            self.seen.busy += elapsed;
        }
        for id in &self.computing {
            self.sessions[*id as usize].left -= elapsed / computing as f64;
        }
    }

    fn reschedule(&mut self) {
        let computing = self.computing.len() as f64;
        for id in &self.computing {
            let session = &self.sessions[*id as usize];
            if let Some(epoch) = session.lease {
                let time = self.now + Duration::from_secs_f64(session.left.max(0.0) * computing);
                self.calendar
                    .push(Reverse((time, Happening::Ends(*id, epoch))));
            }
        }
    }

    fn session(&mut self, id: SessionId) -> &mut Session {
        &mut self.sessions[id as usize]
    }

    fn enter(&mut self, delay: f64, happening: Happening) {
        let time = self.now + Duration::from_secs_f64(delay);
        self.calendar.push(Reverse((time, happening)));
    }
}
