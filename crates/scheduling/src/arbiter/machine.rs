//! The arbiter's entry point: take in an event, then decide.

use crate::arbiter::{
    Action, EndReason, Epoch, Event, SessionId, Settings,
    accounts::Accounts,
    leases::{Priority, Rank},
    session::{Lease, Session, Trim},
    sessions::Sessions,
    shortage::Shortage,
};
use std::time::Duration;

#[derive(Debug)]
pub struct Arbiter {
    pub(crate) settings: Settings,
    pub(crate) sessions: Sessions,
    pub(crate) now: Duration,
    /// How long swap-outs have taken since the last swap-in ended.
    pub(crate) moved_out: Duration,
    pub(crate) shortage: Shortage,
    /// How much host memory sessions may use, if it was reported.
    pub(crate) host_bytes: Option<u64>,
    /// Since when no session can make room, because the host has none.
    pub(crate) stuck_since: Option<Duration>,
    /// The last lease before which places were given up for a test.
    pub(crate) tortured: Epoch,
    accounts: Accounts,
    pub(crate) epoch: Epoch,
    /// Seconds of its guaranteed share that the lowest level has not had.
    guaranteed_debt: f64,
    /// The debt reached a whole slice, and is not paid off yet.
    is_overdue: bool,
}

impl Arbiter {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            sessions: Sessions::new(settings.levels),
            settings,
            now: Duration::ZERO,
            moved_out: Duration::ZERO,
            shortage: Shortage::default(),
            host_bytes: None,
            stuck_since: None,
            tortured: 0,
            accounts: Accounts::default(),
            epoch: 0,
            guaranteed_debt: 0.0,
            is_overdue: false,
        }
    }

    /// Returns what to do after `event`, in this order. `now` must not go back.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.charge_since_last_event(now);
        let mut actions = Vec::new();
        self.take_in(event, &mut actions);
        self.end_overdue(&mut actions);
        self.doubt_shortage();
        self.grow(&mut actions);
        self.take_back(&mut actions);
        self.grant(&mut actions);
        self.transfer(&mut actions);
        self.pin_ahead(&mut actions);
        self.give_up_stuck(&mut actions);
        self.release_gpu(&mut actions);
        actions
    }

    /// When to send [`Event::Woke`] if nothing happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let wanted = self.sessions.any_waits() || self.needy().is_some();
        let computing = self.sessions.count_computing() as u32;
        let swapped_out = self.sessions.sums().swapped_out > 0;
        let retries = swapped_out.then(|| self.sessions.values().map(Session::retries_at));
        let sessions = self.sessions.computing();
        sessions
            .flat_map(|(_, session)| self.wakes_of(session, wanted, computing))
            .chain(retries.into_iter().flatten())
            .chain(self.deadlines().map(|(_, time)| Some(time)))
            .chain([
                self.wake_for_the_lowest(),
                self.doubted_at(),
                self.next_sleeps_at(),
                self.next_trimmed_at(),
                self.given_up_at(),
                self.pins_at(),
            ])
            .flatten()
            .filter(|time| *time > self.now)
            .min()
    }

    /// How many sessions compute before this one; `None` if it does not wait.
    #[must_use]
    pub fn ahead_of(&self, session: SessionId) -> Option<usize> {
        let asked = self.sessions.get(&session)?;
        if !asked.waits() {
            return None;
        }
        let priority = self.priority(asked);
        let is_ahead = |other: &&Session| {
            other.computes() || (other.waits() && self.priority(other) < priority)
        };
        Some(self.sessions.values().filter(is_ahead).count())
    }

    /// Bytes of GPU memory in use, including those that are on their way there.
    #[must_use]
    pub fn bytes_on_gpu(&self) -> u64 {
        self.sessions.sums().bytes_on_gpu as u64
    }

    // ---- taking in

    /// Charges the sessions that computed for the time since the last event.
    fn charge_since_last_event(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if elapsed.is_zero() {
            return;
        }
        self.accounts.decay(elapsed, self.settings.half_life);
        self.charge_the_lowest(elapsed);
        let each = elapsed / (self.sessions.count_computing() as u32).max(1);
        let accounts = &mut self.accounts;
        let charged = |account| accounts.charge(account, each);
        self.sessions.charge(each, now, charged);
    }

    fn charge_the_lowest(&mut self, elapsed: Duration) {
        if self.lowest_computes() {
            self.guaranteed_debt = (self.guaranteed_debt - elapsed.as_secs_f64()).max(0.0);
        } else if self.lowest_waits() {
            self.guaranteed_debt += elapsed.as_secs_f64() * self.settings.guaranteed_share;
        } else {
            self.guaranteed_debt = 0.0;
        }
        let slice = self.settings.guaranteed_slice.as_secs_f64();
        self.is_overdue =
            self.guaranteed_debt >= slice || (self.is_overdue && self.guaranteed_debt > 0.0);
    }

    fn take_in(&mut self, event: Event, actions: &mut Vec<Action>) {
        let now = self.now;
        match event {
            Event::Woke => {}
            Event::Joined {
                session,
                user,
                fixed_bytes,
            } => {
                let account = self.accounts.open(user);
                let joined = Session::new(account, fixed_bytes, now);
                self.sessions.insert(session, joined);
            }
            Event::Left(id) => {
                if self.sessions.get(&id).is_some_and(|one| one.has_context) {
                    self.shortage.begin_anew(now);
                }
                self.sessions.remove(id);
            }
            Event::Vacated(id) => {
                self.sessions.change(id, Session::vacate);
                self.shortage.begin_anew(now);
            }
            Event::HostHas { bytes } => self.host_has(bytes, actions),
            Event::SessionHas { session, bytes } => self.session_has(session, bytes, actions),
            Event::Pinned { session, bytes } => {
                let settings = &self.settings;
                let pin = |one: &mut Session| one.pin(bytes, now, settings);
                self.sessions.change(session, pin);
            }
            Event::CanTrim(id) => {
                self.sessions.change(id, |one| one.trim = Trim::Can);
            }
            Event::Trimmed(id) => {
                self.sessions.change(id, |one| one.trim = Trim::Done);
            }
            Event::Grew { session, bytes } => self.ask_to_grow(session, bytes, actions),
            Event::Full {
                session,
                needed_bytes,
                free_bytes,
            } => self.find_full(session, needed_bytes, free_bytes, actions),
            Event::Expected(id)
            | Event::CellStarted(id)
            | Event::CellEnded(id)
            | Event::Wanted(id)
            | Event::PartLeft { session: id, .. }
            | Event::SwappedOut(id)
            | Event::SwappedIn(id)
            | Event::NotSwappedIn(id)
            | Event::Yielded { session: id, .. }
            | Event::Shrank { session: id, .. } => {
                let retry_at = now + self.settings.retry;
                let is_holding = |session: &Session| session.holds();
                if matches!(event, Event::CellEnded(_))
                    && self.sessions.get(&id).is_some_and(is_holding)
                {
                    self.preempt(id, actions);
                }
                let moved_out = &mut self.moved_out;
                self.sessions.change(id, |session| match event {
                    Event::Expected(_) => session.expect_cell(),
                    Event::CellStarted(_) => {
                        session.expect_cell();
                        session.attained = Duration::ZERO;
                    }
                    Event::CellEnded(_) => session.end_cell(),
                    Event::Wanted(_) => session.want(now),
                    Event::Yielded { epoch, .. } => session.give_back(epoch, now),
                    Event::Shrank {
                        bytes,
                        swapped_out_bytes,
                        ..
                    } => session.shrink(bytes, swapped_out_bytes),
                    Event::PartLeft { bytes, .. } => session.leave_in_part(bytes),
                    Event::SwappedOut(_) => *moved_out += session.leave(now),
                    Event::SwappedIn(_) => session.arrive(now, std::mem::take(moved_out)),
                    _ => session.stay_away(retry_at),
                });
            }
        }
    }

    // ---- leases

    fn end_overdue(&mut self, actions: &mut Vec<Action>) {
        let overdue = self.deadlines().filter(|(_, time)| *time <= self.now);
        for id in overdue.map(|(id, _)| id).collect::<Vec<_>>() {
            self.sessions
                .change(id, |session| session.lease = Lease::Ending);
            actions.push(Action::End {
                session: id,
                reason: EndReason::Kept,
            });
        }
    }

    /// The deadlines of sessions that compute or move memory.
    fn deadlines(&self) -> impl Iterator<Item = (SessionId, Duration)> {
        let sums = self.sessions.sums();
        let moves = sums.leaving + sums.coming > 0;
        let all = moves.then(|| self.sessions.iter().map(|(id, session)| (*id, session)));
        let computing = (!moves).then(|| self.sessions.computing());
        let bound = all
            .into_iter()
            .flatten()
            .chain(computing.into_iter().flatten());
        bound.filter_map(|(id, session)| Some((id, self.settings.deadline(session)?)))
    }

    /// Takes leases back from sessions that have had their time. If a session that computes finds no room for
    /// its allocation, all others lose their leases.
    fn take_back(&mut self, actions: &mut Vec<Action>) {
        if self.sessions.count_computing() == 0 {
            return;
        }
        let crowded = self.needy().filter(|id| !self.fits_beside_holders(*id));
        for id in [self.next_resident(), crowded].into_iter().flatten() {
            let rival = &self.sessions[&id];
            let (priority, computes) = (self.priority(rival), rival.computes());
            let yields = |session: &Session| {
                computes
                    || (self.settings).yields(session, self.priority(session), priority, self.now)
            };
            // Only a session with a lease can lose one.
            let others = self.sessions.computing().filter(|(other, _)| *other != id);
            let losing = others.filter(|(_, session)| yields(session));
            for other in losing.map(|(other, _)| other).collect::<Vec<_>>() {
                self.preempt(other, actions);
            }
        }
    }

    fn preempt(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        if let Lease::Holding { epoch, .. } = self.sessions[&id].lease {
            let deadline = self.now + self.settings.drain_limit;
            self.sessions.change(id, |session| {
                session.lease = Lease::Draining {
                    epoch,
                    deadline,
                    wants: false,
                };
            });
            actions.push(Action::Preempt {
                session: id,
                epoch,
                deadline,
            });
        }
    }

    fn grant(&mut self, actions: &mut Vec<Action>) {
        while self.may_be_joined()
            && let Some(id) = self.next_resident()
        {
            let is_alone = self.sessions.count_computing() == 0;
            if !is_alone && self.needy().is_some_and(|needy| needy != id) {
                return;
            }
            let rank = self.priority(&self.sessions[&id]).rank;
            let level = self.settings.level(&self.sessions[&id]);
            self.epoch += 1;
            let lease = Lease::Holding {
                epoch: self.epoch,
                since: self.now,
                level,
                guaranteed: rank == Rank::Overdue,
            };
            self.sessions.change(id, |session| {
                session.fresh = false;
                session.lease = lease;
            });
            actions.push(Action::Grant {
                session: id,
                epoch: self.epoch,
            });
        }
    }

    /// Whether one more session may compute: if none computes, or if only cells of the lowest level compute and
    /// no other level waits.
    fn may_be_joined(&self) -> bool {
        let computing = self.sessions.count_computing();
        let lowest = self.settings.lowest();
        let lets_in = |session: &Session| session.holds() && self.settings.level(session) == lowest;
        computing == 0
            || (computing < self.settings.together
                && !(0..lowest).any(|level| self.sessions.any_waits_in(level))
                && self
                    .sessions
                    .computing()
                    .all(|(_, session)| lets_in(session)))
    }

    // ---- looking

    /// The waiting session with the best priority among those that are meant.
    pub(crate) fn front(
        &self,
        is_meant: impl Fn(SessionId, &Session) -> bool,
    ) -> Option<SessionId> {
        let lowest = self.settings.lowest();
        let overdue = self.is_overdue.then_some(lowest);
        let mut levels = overdue.into_iter().chain(0..=lowest);
        levels.find_map(|level| {
            let waiting = self.sessions.waiting(level);
            let meant = waiting.filter(|(id, session)| is_meant(*id, session));
            best(meant.map(|(id, session)| (id, self.place_in(level, session))))
        })
    }

    /// The next session that can compute without moving memory. A session whose memory must make way for a
    /// session before it does not compute.
    fn next_resident(&self) -> Option<SessionId> {
        let needy = self.needy();
        self.front(|id, session| {
            session.is_resident() && needy.is_none_or(|needy| !self.blocks(id, needy))
        })
    }

    pub(crate) fn priority(&self, session: &Session) -> Priority {
        self.place_in(self.settings.level(session), session)
    }

    fn place_in(&self, level: usize, session: &Session) -> Priority {
        let is_lowest = level == self.settings.lowest() && !session.computes();
        Priority {
            rank: if is_lowest && self.is_overdue {
                Rank::Overdue
            } else {
                Rank::Level(level)
            },
            used: self.accounts.used(session.account),
            since: session.waits_since(),
        }
    }

    fn lowest_computes(&self) -> bool {
        let lowest = self.settings.lowest();
        let mut computing = self.sessions.computing();
        computing.any(|(_, session)| self.settings.level(session) == lowest)
    }

    fn lowest_waits(&self) -> bool {
        self.sessions.any_waits_in(self.settings.lowest())
    }

    fn wakes_of(&self, session: &Session, wanted: bool, computing: u32) -> [Option<Duration>; 5] {
        let settings = &self.settings;
        match session.lease {
            Lease::Holding {
                since, guaranteed, ..
            } if wanted => {
                let slices = (self.now - since).as_nanos() / settings.slice.as_nanos() + 1;
                let floor = since + session.swap_time.mul_f64(settings.swap_floor);
                let next_level = settings.until_next_level(session);
                [
                    Some(floor),
                    next_level.map(|left| self.now + left * computing),
                    Some(since + settings.slice * slices as u32),
                    guaranteed.then_some(since + settings.guaranteed_floor),
                    guaranteed.then_some(since + settings.guaranteed_slice),
                ]
            }
            _ => [None; 5],
        }
    }

    fn wake_for_the_lowest(&self) -> Option<Duration> {
        let left = self.settings.guaranteed_slice.as_secs_f64() - self.guaranteed_debt;
        let share = self.settings.guaranteed_share;
        let grows = share > 0.0 && self.lowest_waits() && !self.lowest_computes();
        (grows && !self.is_overdue)
            .then(|| self.now + Duration::from_secs_f64(left.max(0.0) / share) + PRECISION)
    }
}

/// Coarser than the rounding of seconds in an `f64`.
const PRECISION: Duration = Duration::from_micros(1);

pub(crate) fn best(priorities: impl Iterator<Item = (SessionId, Priority)>) -> Option<SessionId> {
    priorities
        .min_by(|(_, left), (_, right)| left.partial_cmp(right).expect("times are numbers"))
        .map(|(id, _)| id)
}
