//! The arbiter's entry point: take in an event, then decide.

use crate::arbiter::{
    Action, Event, SessionId, Settings, ahead,
    deadlock::Deadlock,
    leases, memory, release,
    session::{Session, Trim},
    state::State,
};
use std::{mem, time::Duration};

#[derive(Debug)]
pub struct Arbiter {
    state: State,
    /// How long swap-outs have taken since the last swap-in ended.
    moved_out: Duration,
    deadlock: Deadlock,
}

impl Arbiter {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            state: State::new(settings),
            moved_out: Duration::ZERO,
            deadlock: Deadlock::default(),
        }
    }

    /// Returns what to do after `event`, in this order. `now` must not go back.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.state.charge_until(now);
        let mut actions = Vec::new();
        self.take_in(event, &mut actions);
        let state = &mut self.state;
        leases::end_overdue(state, &mut actions);
        release::doubt_shortage(state);
        memory::grow(state, &mut actions);
        leases::take_back(state, &mut actions);
        leases::grant(state, &mut actions);
        memory::transfer(state, &mut actions);
        ahead::pin(state, &mut actions);
        self.deadlock.resolve(state, &mut actions);
        release::release_chosen(state, &mut actions);
        actions
    }

    /// When to send [`Event::Woke`] if nothing happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let state = &self.state;
        let swapped_out = state.sessions.sums().swapped_out > 0;
        let retries = swapped_out.then(|| state.sessions.values().map(Session::retries_at));
        let single = [
            release::doubted_at(state),
            memory::next_sleeps_at(state),
            memory::next_trimmed_at(state),
            self.deadlock.resolved_at(&state.settings),
            ahead::pins_at(state),
        ];
        leases::wake_times(state)
            .chain(retries.into_iter().flatten().flatten())
            .chain(single.into_iter().flatten())
            .filter(|time| *time > state.now)
            .min()
    }

    /// How many sessions compute before this one; `None` if it does not wait.
    #[must_use]
    pub fn ahead_of(&self, session: SessionId) -> Option<usize> {
        let state = &self.state;
        let asked = state.sessions.get(&session)?;
        if !asked.waits() {
            return None;
        }
        let priority = state.priority(asked);
        let is_ahead = |other: &&Session| {
            other.computes() || (other.waits() && state.priority(other) < priority)
        };
        Some(state.sessions.values().filter(is_ahead).count())
    }

    /// Bytes of GPU memory in use, including those that are on their way there.
    #[must_use]
    pub fn bytes_on_gpu(&self) -> u64 {
        self.state.bytes_on_gpu()
    }

    fn take_in(&mut self, event: Event, actions: &mut Vec<Action>) {
        let state = &mut self.state;
        let now = state.now;
        match event {
            Event::Woke => {}
            Event::Joined {
                session,
                user,
                fixed_bytes,
            } => state.join(session, user, fixed_bytes),
            Event::Left(id) => state.remove(id),
            Event::Expected(id) => {
                state.sessions.change(id, Session::expect_cell);
            }
            Event::CellStarted(id) => {
                state.sessions.change(id, Session::begin_cell);
            }
            Event::CellStopped(id) => {
                state.sessions.change(id, Session::stop_cell);
            }
            Event::CellEnded(id) => {
                leases::preempt(state, id, actions);
                state.sessions.change(id, Session::end_cell);
            }
            Event::Wanted(id) => {
                state.sessions.change(id, |one| one.want(now));
            }
            Event::Yielded { session: id, epoch } => {
                state.sessions.change(id, |one| one.give_back(epoch, now));
            }
            Event::Grew { session, bytes } => memory::ask_to_grow(state, session, bytes, actions),
            Event::Shrank {
                session: id,
                bytes,
                swapped_out_bytes,
            } => state.shrink(id, bytes, swapped_out_bytes),
            Event::PartLeft { session: id, bytes } => {
                state.sessions.change(id, |one| one.leave_in_part(bytes));
            }
            Event::SwappedOut(id) => {
                let took = state.sessions.change(id, |one| one.leave(now));
                self.moved_out += took.unwrap_or_default();
            }
            Event::SwappedIn(id) => {
                let moved_out = &mut self.moved_out;
                state
                    .sessions
                    .change(id, |one| one.arrive(now, mem::take(moved_out)));
            }
            Event::NotSwappedIn(id) => {
                let retry_at = now + state.settings.retry;
                state.sessions.change(id, |one| one.stay_away(retry_at));
            }
            Event::NoRoom {
                session,
                bytes,
                free_bytes,
            } => release::no_room(state, session, bytes, free_bytes, actions),
            Event::NotGrown {
                session: id,
                bytes,
                swapped_out_bytes,
                free_bytes,
            } => {
                state.shrink(id, bytes, swapped_out_bytes);
                release::find_full(state, id, bytes, free_bytes, actions);
            }
            Event::CanTrim(id) => {
                state.sessions.change(id, |one| one.trim = Trim::Can);
            }
            Event::Trimmed(id) => {
                state.sessions.change(id, |one| one.trim = Trim::Done);
            }
            Event::Vacated(id) => {
                state.sessions.change(id, Session::vacate);
                state.shortage.begin_anew(now);
            }
            Event::Pinned { session: id, bytes } => {
                let settings = &state.settings;
                state
                    .sessions
                    .change(id, |one| one.pin(bytes, now, settings));
            }
            Event::HostHas { bytes } => ahead::host_has(state, bytes, actions),
            Event::SessionHas { session, bytes } => {
                ahead::session_has(state, session, bytes, actions);
            }
        }
    }
}
