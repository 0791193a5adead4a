//! Places on the host that are made ahead of a move, because making and pinning a place takes longer than
//! copying into it.
//!
//! If the sessions together leave less of the GPU free than its reserve, moves are likely. A session that makes
//! way then moves out the amount by which all sessions together exceed that limit. So every session makes
//! places for that amount, a piece at a time, while nothing moves. No places are made ahead for a session that
//! is alone, or while the memory of all sessions fits beside the reserve.
//!
//! Places are made ahead only while all places on the host together take less than half of what sessions may
//! use there. Places that were made ahead are given up first when other sessions need the room. They are also
//! given up when the host has less than half as much memory left as all places take, or when a session's own
//! limits leave less than half as much as its places made ahead take.
//!
//! **Invariant:** these places influence no other decision. Allocations and moves happen as they would without
//! them.

use crate::arbiter::{
    Action, Arbiter, SessionId,
    session::{Lease, Release, Session},
};
use std::time::Duration;

impl Arbiter {
    /// The places of all sessions, including those that were made ahead and those that are being made.
    pub(crate) fn places_bytes(&self) -> u64 {
        self.sessions.sums().places_bytes as u64
    }

    pub(crate) fn host_has(&mut self, bytes: u64, actions: &mut Vec<Action>) {
        let places = self.places_bytes();
        self.host_bytes = Some(places + bytes);
        self.give_back_ahead(surplus(places, bytes), |_| true, actions);
    }

    pub(crate) fn session_has(
        &mut self,
        session: SessionId,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        let ahead = self.sessions.change(session, |one| {
            one.limit(bytes);
            one.ahead_bytes()
        });
        let surplus = surplus(ahead.unwrap_or(0), bytes);
        self.give_back_ahead(surplus, |id| id == session, actions);
    }

    /// Gives up places that were made ahead, in whole parts, until `bytes` are given up or the sessions that
    /// are meant have none left. The session with the most comes first. Returns how many bytes were given up.
    pub(crate) fn give_back_ahead(
        &mut self,
        bytes: u64,
        is_meant: impl Fn(SessionId) -> bool,
        actions: &mut Vec<Action>,
    ) -> u64 {
        let mut given = 0;
        while given < bytes && self.sessions.sums().ahead_bytes > 0 {
            let meant = self.sessions.iter().filter(|(id, _)| is_meant(**id));
            let largest = meant
                .map(|(id, one)| (one.ahead_bytes(), *id))
                .max()
                .filter(|(ahead, _)| *ahead > 0);
            let Some((_, session)) = largest else { break };
            let part = self.settings.part_bytes.max(1);
            let whole_parts = (bytes - given).div_ceil(part).saturating_mul(part);
            let give = |one: &mut Session| one.give_back_ahead(whole_parts);
            let bytes = self.sessions.change(session, give).unwrap_or(0);
            actions.push(Action::Unpin { session, bytes });
            given += bytes;
        }
        given
    }

    /// Asks one session to make places, if any session should.
    pub(crate) fn pin_ahead(&mut self, actions: &mut Vec<Action>) {
        self.torture_places(actions);
        if self.pinned_until().is_some() {
            return;
        }
        let may_be_asked = self
            .lacking()
            .filter(|(_, one, _)| one.ahead.retry_at <= self.now);
        // The session that would make way first.
        let first = may_be_asked.min_by_key(|(id, one, _)| (one.activity, one.used_at, *id));
        if let Some((session, _, bytes)) = first {
            let since = self.now;
            self.sessions
                .change(session, |one| one.begin_to_pin(bytes, since));
            actions.push(Action::Pin { session, bytes });
        }
    }

    /// When the next session may be asked to make places, if nothing happens before.
    pub(crate) fn pins_at(&self) -> Option<Duration> {
        let retry_at = self.lacking().map(|(_, one, _)| one.ahead.retry_at).min()?;
        Some(self.pinned_until().unwrap_or(retry_at))
    }

    /// Until when to wait for the session that is making places. One session at a time makes places, but a
    /// session that does not answer is not waited for longer than `late`.
    fn pinned_until(&self) -> Option<Duration> {
        if self.sessions.sums().pinning == 0 {
            return None;
        }
        let asked = self.sessions.values().filter_map(|one| one.ahead.asked);
        let until = asked.map(|asked| asked.since + self.settings.late);
        until.filter(|time| *time > self.now).min()
    }

    /// The sessions that should make places, and for how many bytes.
    fn lacking(&self) -> impl Iterator<Item = (SessionId, &Session, u64)> {
        let sums = self.sessions.sums();
        let expected = match sums.leaving + sums.coming {
            0 => self.expected_to_leave(),
            _ => 0,
        };
        let room = (self.host_bytes() / 2).saturating_sub(self.places_bytes());
        let sessions = (expected > 0).then(|| self.sessions.iter());
        let all = sessions.into_iter().flatten();
        all.filter_map(move |(id, one)| {
            let bytes = self.lacks_ahead(one, expected, room)?;
            Some((*id, one, bytes))
        })
    }

    /// How much is likely to leave the GPU when another session needs room there.
    fn expected_to_leave(&self) -> u64 {
        let sums = self.sessions.sums();
        if self.settings.pin_bytes == 0 {
            return 0;
        }
        if self.settings.torture.is_some() {
            return u64::MAX;
        }
        let wanted = sums.bytes_wanted as u64 + self.settings.memory.reserve_bytes;
        let beyond = wanted.saturating_sub(self.usable_bytes());
        match sums.rivals {
            2.. if beyond > 0 => beyond + self.settings.part_bytes,
            _ => 0,
        }
    }

    /// For how many bytes the session should make places, if for any.
    fn lacks_ahead(&self, session: &Session, expected: u64, room: u64) -> Option<u64> {
        let ahead = &session.ahead;
        let may_be_asked = matches!(
            session.lease,
            Lease::Idle | Lease::Waiting { .. } | Lease::Holding { .. }
        );
        if !may_be_asked || session.release != Release::No || ahead.asked.is_some() {
            return None;
        }
        let without_place = session
            .bytes_there()
            .saturating_sub(session.free_pinned_bytes() + ahead.bytes);
        let wanted = session
            .bytes
            .min(expected)
            .saturating_sub(session.places_bytes());
        let lacking = wanted.min(without_place);
        let own_room = session.room_in_limits();
        let room = room.min(own_room.saturating_sub(ahead.bytes) / 2);
        let bytes = lacking.min(room).min(self.settings.pin_bytes);
        // Less than one part is not worth it, unless that is all the session lacks.
        (bytes > 0 && bytes >= lacking.min(self.settings.part_bytes)).then_some(bytes)
    }

    /// For tests of moves: sometimes gives up places although no session needs the room.
    fn torture_places(&mut self, actions: &mut Vec<Action>) {
        let Some(seed) = self.settings.torture else {
            return;
        };
        if std::mem::replace(&mut self.tortured, self.epoch) == self.epoch {
            return;
        }
        let number = self.random_number(seed);
        let ahead = self.sessions.sums().ahead_bytes as u64;
        if number.is_multiple_of(4) && ahead > 0 {
            self.give_back_ahead((number >> 8) % ahead + 1, |_| true, actions);
        }
    }
}

/// By how many bytes the places are too large, if only `left` more bytes are available.
fn surplus(places: u64, left: u64) -> u64 {
    if left < places / 2 {
        places - (places + left) / 2
    } else {
        0
    }
}
