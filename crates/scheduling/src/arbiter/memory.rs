//! Which sessions have their memory on the GPU.

use crate::arbiter::{
    Action, Arbiter, EndReason, SessionId,
    machine::best,
    session::{Activity, Lease, Release, Residency, Session, Trim},
};
use std::time::Duration;

impl Arbiter {
    /// Records a requested allocation, or refuses it if it could never succeed. That is the case if it is
    /// larger than the GPU's memory without what always stays there. If not all memory fits on the GPU
    /// together, it is also the case if the host has too little room for every session to return.
    pub(crate) fn ask_to_grow(&mut self, id: SessionId, bytes: u64, actions: &mut Vec<Action>) {
        let fixed = self.fixed_bytes();
        let usable = self.settings.memory.usable_bytes;
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let own = session.bytes + session.growing_bytes + bytes;
        let refused = session.is_hopeless
            || fixed + own > usable
            || (fixed + self.movable_bytes() + bytes > usable && !self.host_allows(id, bytes));
        if refused {
            actions.push(Action::Refuse { session: id, bytes });
        }
        self.sessions.change(id, |session| {
            session.is_hopeless = false;
            if !refused {
                session.growing_bytes += bytes;
            }
        });
    }

    /// Grants allocations for which there is room, and those that need no room yet.
    pub(crate) fn grow(&mut self, actions: &mut Vec<Action>) {
        if self.sessions.sums().growing == 0 {
            return;
        }
        let growing = self
            .sessions
            .iter()
            .filter(|(_, one)| one.growing_bytes > 0);
        for session in growing.map(|(id, _)| *id).collect::<Vec<_>>() {
            let free = self.free_bytes();
            let one = &self.sessions[&session];
            let bytes = one.growing_bytes;
            if one.is_swapped_out() || (one.is_resident() && bytes <= free) {
                self.sessions.change(session, |one| {
                    one.grow(bytes);
                    one.growing_bytes = 0;
                });
                actions.push(Action::Grow { session, bytes });
            }
        }
    }

    /// Begins at most one move in each direction.
    pub(crate) fn transfer(&mut self, actions: &mut Vec<Action>) {
        let since = self.now;
        let is_leaving = self.sessions.sums().leaving > 0;
        if self.sessions.sums().coming == 0
            && let Some(id) = self.next_to_come()
        {
            let coming = Residency::Coming { since };
            self.sessions
                .change(id, |session| session.residency = coming);
            actions.push(Action::SwapIn(id));
        }
        self.ask_to_trim(actions);
        if !is_leaving && let Some((id, bytes)) = self.next_to_leave() {
            self.unpin_for(id, bytes, actions);
            let leave = |session: &mut Session| {
                session.begin_to_leave(bytes, since);
                session.bytes_leaving()
            };
            if let Some(bytes) = self.sessions.change(id, leave) {
                actions.push(Action::SwapOut { session: id, bytes });
            }
        }
    }

    /// The session for which room is made: it allocates or returns, and it is next in the order. A session that
    /// computes comes before all others.
    pub(crate) fn needy(&self) -> Option<SessionId> {
        if self.sessions.sums().growing == 0 && self.sessions.sums().swapped_out == 0 {
            return None;
        }
        let needy = self
            .sessions
            .iter()
            .filter(|(_, session)| self.needs_room(session));
        let computing = needy.clone().find(|(_, session)| session.computes());
        let priorities = needy.map(|(id, session)| (*id, self.priority(session)));
        computing.map(|(id, _)| *id).or_else(|| best(priorities))
    }

    /// Whether there is room for the session once all sessions that do not compute have made way.
    pub(crate) fn fits_beside_holders(&self, id: SessionId) -> bool {
        self.room_without(id, id) >= bytes_needed(&self.sessions[&id])
    }

    /// Whether `needy`, which comes before session `id`, finds no room while that session computes.
    pub(crate) fn blocks(&self, id: SessionId, needy: SessionId) -> bool {
        self.must_leave(id, &self.sessions[&id], needy)
            && self.room_without(id, needy) < bytes_needed(&self.sessions[&needy])
    }

    /// The room that sessions which do not compute can make for `needy` while `kept` stays.
    fn room_without(&self, kept: SessionId, needy: SessionId) -> u64 {
        let must_leave =
            |id: SessionId, session: &Session| id != kept && self.must_leave(id, session, needy);
        let possible = self
            .sessions
            .iter()
            .filter(|(id, session)| must_leave(**id, session));
        let (mut there, mut with_pinned) = (0, 0);
        for (_, session) in possible {
            let can_leave = self.can_leave(session);
            there += can_leave;
            with_pinned += can_leave.min(session.free_pinned_bytes());
        }
        self.room_with_leaving() + self.room_under_pressure()(there, with_pinned)
    }

    /// Memory that stays on the GPU, whichever session computes.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        self.sessions.values().map(|one| one.fixed_bytes).sum()
    }

    fn free_bytes(&self) -> u64 {
        self.usable_bytes().saturating_sub(self.bytes_on_gpu())
    }

    /// Memory that is free, or will be once the current swap-out ends.
    fn room_with_leaving(&self) -> u64 {
        self.free_bytes() + self.sessions.sums().bytes_leaving as u64
    }

    fn needs_room(&self, session: &Session) -> bool {
        self.wants_room(session) && self.could_fit(session)
    }

    /// Whether the session lacks room, even if no room can be made.
    pub(crate) fn wants_room(&self, session: &Session) -> bool {
        (session.is_resident() && session.growing_bytes > 0)
            || (session.waits() && session.is_swapped_out() && session.retry_at <= self.now)
    }

    /// The next session to swap in: the one that needs room now, or one with a cell for which there is room.
    fn next_to_come(&self) -> Option<SessionId> {
        if self.sessions.sums().swapped_out == 0 {
            return None;
        }
        let free = self.free_bytes();
        let is_ready =
            |session: &Session| session.is_swapped_out() && session.swapped_out_bytes <= free;
        if let Some(id) = self.needy() {
            return is_ready(&self.sessions[&id]).then_some(id);
        }
        let expected = self.sessions.iter().find(|(_, session)| {
            session.activity == Activity::Running
                && session.retry_at <= self.now
                && is_ready(session)
        });
        expected.map(|(id, _)| *id)
    }

    /// The next session to swap out, and how many of its bytes: as many as are needed, or all it can move if no
    /// session waits for them.
    fn next_to_leave(&self) -> Option<(SessionId, u64)> {
        let is_chosen = |one: &Session| {
            one.release == Release::Chosen && may_leave(one) && self.host_has_room_for(one)
        };
        if self.sessions.sums().chosen > 0
            && let Some(id) = self.victim(|_, one| is_chosen(one))
        {
            return Some((id, u64::MAX));
        }
        if let Some(needy) = self.needy() {
            let needed = bytes_needed(&self.sessions[&needy]);
            let short = needed.saturating_sub(self.room_with_leaving());
            if short == 0 || !self.fits_beside_holders(needy) {
                return None;
            }
            let room = self.room_under_pressure();
            let room_for =
                |session: &Session| room(self.can_leave(session), session.free_pinned_bytes());
            let victim = self.victim(|id, session| {
                self.must_leave(id, session, needy) && room_for(session) > 0
            })?;
            let session = &self.sessions[&victim];
            let can_leave = room_for(session);
            let trims = self.trims_until(session).is_some();
            return (!trims).then_some((victim, short.min(can_leave)));
        }
        if let Some(seed) = self.settings.torture {
            return self.victim_of_torture(seed);
        }
        if !self.lacks_reserve() {
            return None;
        }
        let asleep = self.victim(|_, session| {
            self.sleeps_at(session).is_some_and(|time| time <= self.now)
                && may_leave(session)
                && self.room_unasked(session) > 0
        })?;
        Some((asleep, self.room_unasked(&self.sessions[&asleep])))
    }

    /// Asks all sessions that could make room in this way. A session that computes does so at the end of its
    /// cell.
    fn ask_to_trim(&mut self, actions: &mut Vec<Action>) {
        let Some(needy) = self.needy() else { return };
        if bytes_needed(&self.sessions[&needy]) <= self.room_with_leaving() {
            return;
        }
        let others = self.sessions.iter().filter(|(id, _)| **id != needy);
        let able = others.filter(|(_, one)| one.trim == Trim::Can && one.bytes_there() > 0);
        for id in able.map(|(id, _)| *id).collect::<Vec<_>>() {
            let since = self.now;
            self.sessions
                .change(id, |one| one.trim = Trim::Asked { since });
            actions.push(Action::Trim(id));
        }
    }

    fn trims_until(&self, session: &Session) -> Option<Duration> {
        let until = session.trims_until(self.settings.trim_limit);
        until.filter(|time| *time > self.now)
    }

    /// When the time of the first session that was asked to trim is over.
    pub(crate) fn next_trimmed_at(&self) -> Option<Duration> {
        let asked = self.sessions.values();
        asked.filter_map(|one| self.trims_until(one)).min()
    }

    /// Any session that rests, and any part of its memory: a pseudo-random choice by the seed and the number of
    /// leases so far.
    fn victim_of_torture(&self, seed: u64) -> Option<(SessionId, u64)> {
        let restful = self
            .sessions
            .iter()
            .filter(|(_, one)| may_leave(one) && !one.fresh);
        let restful: Vec<(SessionId, u64)> = restful
            .map(|(id, one)| (*id, one.bytes_there().min(self.room_unasked(one))))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let number = self.random_number(seed);
        let (id, bytes) = *restful.get(number as usize % restful.len().max(1))?;
        Some((id, (number >> 8) % bytes + 1))
    }

    /// A pseudo-random number that differs for each lease.
    pub(crate) fn random_number(&self, seed: u64) -> u64 {
        let number = (seed ^ self.epoch).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        number ^ (number >> 29)
    }

    /// The session that needs room while no session computes or moves, and memory that should leave finds no
    /// room on the host.
    fn stuck(&self) -> Option<SessionId> {
        let sums = self.sessions.sums();
        if self.sessions.count_computing() > 0 || sums.leaving + sums.coming > 0 {
            return None;
        }
        self.needy().filter(|id| !self.fits_beside_holders(*id))
    }

    /// Refuses the allocation of a session that has been stuck for too long, or ends the session.
    pub(crate) fn give_up_stuck(&mut self, actions: &mut Vec<Action>) {
        let Some(id) = self.stuck() else {
            self.stuck_since = None;
            return;
        };
        let since = *self.stuck_since.get_or_insert(self.now);
        if self.now < since + self.settings.drain_limit {
            return;
        }
        self.stuck_since = None;
        self.sessions.change(id, |session| {
            match std::mem::take(&mut session.growing_bytes) {
                0 => {
                    session.lease = Lease::Ending;
                    let reason = EndReason::NoHostRoom;
                    actions.push(Action::End {
                        session: id,
                        reason,
                    });
                }
                bytes => actions.push(Action::Refuse { session: id, bytes }),
            }
        });
    }

    pub(crate) fn given_up_at(&self) -> Option<Duration> {
        Some(self.stuck_since? + self.settings.drain_limit)
    }

    /// When the next session falls asleep whose memory must then leave.
    pub(crate) fn next_sleeps_at(&self) -> Option<Duration> {
        let sessions = self.sessions.values().filter(|_| self.lacks_reserve());
        let awake = sessions.filter(|session| may_leave(session));
        awake
            .filter_map(|session| self.sleeps_at(session))
            .filter(|time| *time > self.now)
            .min()
    }

    fn lacks_reserve(&self) -> bool {
        self.room_with_leaving() < self.settings.memory.reserve_bytes
    }

    fn sleeps_at(&self, session: &Session) -> Option<Duration> {
        let sleeps_at = session.used_at + self.settings.sleeps_after;
        session.is_idle().then_some(sleeps_at)
    }

    /// Sessions without a cell come first, then the least recently used.
    fn victim(&self, is_meant: impl Fn(SessionId, &Session) -> bool) -> Option<SessionId> {
        self.sessions
            .iter()
            .filter(|(id, session)| is_meant(**id, session))
            .min_by_key(|(_, session)| (session.activity, session.used_at))
            .map(|(id, _)| *id)
    }

    /// A waiting session makes way only for a session before it. If it has not computed since its swap-in, it
    /// makes way only for a better rank.
    fn must_leave(&self, id: SessionId, session: &Session, needy: SessionId) -> bool {
        if id == needy || !may_leave(session) {
            return false;
        }
        let needing = &self.sessions[&needy];
        if !session.waits() || needing.computes() {
            return true;
        }
        let (own, other) = (self.priority(session), self.priority(needing));
        if session.fresh {
            other.rank < own.rank
        } else {
            // Of two equal priorities, `needy` is the first.
            (other, needy) < (own, id)
        }
    }
}

fn may_leave(session: &Session) -> bool {
    session.rests() && session.bytes_there() > 0
}

fn bytes_needed(session: &Session) -> u64 {
    if session.is_swapped_out() {
        session.swapped_out_bytes
    } else {
        session.growing_bytes
    }
}
