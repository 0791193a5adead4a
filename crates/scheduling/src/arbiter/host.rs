//! Room on the host for what leaves the GPU.
//!
//! All memory of sessions that does not fit on the GPU together, the *overflow*, is always on the host. A session that
//! returns needs room on the GPU for what it has on the host; until it has moved, the host holds that and the overflow.
//! So every session can return as long as, for each of them, what it may have on the host and the overflow together fit
//! there; and as long as all memory of sessions does. That is what an allocation is measured by.
//!
//! A session that makes way leaves no more than is needed, so it has at most the overflow on the host, and the rest of
//! one part. Only a session that leaves unasked, because it sleeps, could have more there.
//!
//! Places on the host that memory has left again stay pinned for the next time, until others need them. Those that were
//! made ahead of a move count for nothing here, because others have them back first; see `ahead.rs`.

use crate::arbiter::{
    Action, Arbiter, SessionId,
    session::{Residency, Session},
};

impl Arbiter {
    /// All that sessions may have on the host.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.host_bytes.unwrap_or(self.settings.memory.host_bytes)
    }

    /// For more than what has its place there.
    pub(crate) fn room_on_host(&self) -> u64 {
        self.host_bytes().saturating_sub(self.pinned_bytes())
    }

    /// What was on the host keeps its place there.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let sessions = self.sessions.values();
        sessions
            .map(|one| one.filled_bytes() + one.free_pinned_bytes())
            .sum()
    }

    /// Everybody could still return after `id` has grown by so much, although not all fits on the GPU.
    pub(crate) fn host_allows(&self, id: SessionId, bytes: u64) -> bool {
        let overflow = self.overflow_with(bytes);
        let most_to_leave = overflow + self.settings.part_bytes;
        let can_return = |(other, one): (&SessionId, &Session)| {
            let grown = one.growing_bytes + if *other == id { bytes } else { 0 };
            // What it allocates while its memory is on the host comes with the rest.
            let mut returns = one.bytes_to_return();
            if one.residency != Residency::Resident {
                returns += grown;
            }
            let most_returns = returns.max(most_to_leave.min(one.bytes + grown));
            most_returns + most_to_leave <= self.host_bytes()
        };
        // Where the host has room for all, nobody's memory is in the way of another's.
        overflow == 0
            || self.movable_bytes() + bytes <= self.host_bytes()
            || self.sessions.iter().all(can_return)
    }

    /// What does not fit on the GPU together, with so much more.
    fn overflow_with(&self, bytes: u64) -> u64 {
        (self.fixed_bytes() + self.movable_bytes() + bytes).saturating_sub(self.usable_bytes())
    }

    /// Of all sessions, with what they ask for.
    pub(crate) fn movable_bytes(&self) -> u64 {
        let sessions = self.sessions.values();
        sessions.map(|one| one.bytes + one.growing_bytes).sum()
    }

    /// How much of the first bytes can make way, once all who rest have given back their empty places. The second bytes
    /// are the empty places of those who make way.
    pub(crate) fn room_under_pressure(&self) -> impl Fn(u64, u64) -> u64 {
        let sessions = self.sessions.values();
        let kept = sessions.map(|one| {
            let empty = if one.rests() {
                0
            } else {
                one.free_pinned_bytes()
            };
            one.filled_bytes() + empty
        });
        let room = self.host_bytes().saturating_sub(kept.sum());
        let room_now = self.room_on_host();
        move |there_bytes, own_bytes| {
            self.in_whole_parts(there_bytes, room.max(own_bytes + room_now))
        }
    }

    /// How much may be asked to leave, so that no more than `room` does.
    fn in_whole_parts(&self, there_bytes: u64, room: u64) -> u64 {
        if there_bytes <= room {
            there_bytes
        } else {
            room.saturating_sub(self.settings.part_bytes)
        }
    }

    /// For what leaves while nobody needs the room. With at most half of the host's for each session nobody is refused
    /// memory because of that, and everybody can return.
    pub(crate) fn room_unasked(&self, session: &Session) -> u64 {
        let half = self.host_bytes() / 2;
        let room = session.free_pinned_bytes() + self.room_on_host();
        let room = room.min(half.saturating_sub(session.bytes_to_return()));
        self.in_whole_parts(session.bytes_there(), room)
    }

    /// All of it, so that it can return.
    pub(crate) fn host_has_room_for(&self, session: &Session) -> bool {
        session.bytes_there() <= session.free_pinned_bytes() + self.room_on_host()
            && session.bytes + self.overflow_with(0) <= self.host_bytes()
    }

    /// So that so many bytes of `leaving` find room: places that others have ahead first, then the largest empty places,
    /// so that few have to pin anew.
    pub(crate) fn unpin_for(&mut self, leaving: SessionId, bytes: u64, actions: &mut Vec<Action>) {
        let one = &self.sessions[&leaving];
        let most = (bytes.saturating_add(self.settings.part_bytes)).min(one.bytes_there());
        let (before, after) = (one.places_bytes(), one.filled_bytes() + most);
        let new = after.saturating_sub(before);
        loop {
            let lacking = (self.places_bytes() + new).saturating_sub(self.host_bytes());
            if new == 0 || lacking == 0 {
                return;
            }
            if self.give_back_ahead(lacking, |id| id != leaving, actions) > 0 {
                continue;
            }
            let others = self.sessions.iter().filter(|(id, _)| **id != leaving);
            let empty = others
                .filter(|(_, other)| other.rests() && other.free_pinned_bytes() > 0)
                .max_by_key(|(_, other)| other.free_pinned_bytes());
            let Some((id, _)) = empty else { return };
            let session = *id;
            self.sessions.change(session, Session::unpin);
            let bytes = u64::MAX;
            actions.push(Action::Unpin { session, bytes });
        }
    }
}
