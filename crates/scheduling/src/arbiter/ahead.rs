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
    Action, SessionId,
    session::{Lease, Release, Session},
    state::State,
};
use std::time::Duration;

pub(crate) fn host_has(state: &mut State, bytes: u64, actions: &mut Vec<Action>) {
    let places = state.places_bytes();
    state.reported_host_bytes = Some(places + bytes);
    give_back(state, surplus(places, bytes), |_| true, actions);
}

pub(crate) fn session_has(
    state: &mut State,
    session: SessionId,
    bytes: u64,
    actions: &mut Vec<Action>,
) {
    let ahead = state.sessions.change(session, |one| {
        one.limit(bytes);
        one.ahead_bytes()
    });
    let surplus = surplus(ahead.unwrap_or(0), bytes);
    give_back(state, surplus, |id| id == session, actions);
}

/// Gives up places that were made ahead, in whole parts, until `bytes` are given up or the sessions that
/// are meant have none left. The session with the most comes first. Returns how many bytes were given up.
pub(crate) fn give_back(
    state: &mut State,
    bytes: u64,
    is_meant: impl Fn(SessionId) -> bool,
    actions: &mut Vec<Action>,
) -> u64 {
    let mut given = 0;
    while given < bytes && state.sessions.sums().ahead_bytes > 0 {
        let meant = state.sessions.iter().filter(|(id, _)| is_meant(**id));
        let largest = meant
            .map(|(id, one)| (one.ahead_bytes(), *id))
            .max()
            .filter(|(ahead, _)| *ahead > 0);
        let Some((_, session)) = largest else { break };
        let part = state.settings.part_bytes.max(1);
        let whole_parts = (bytes - given).div_ceil(part).saturating_mul(part);
        let give = |one: &mut Session| one.give_back_ahead(whole_parts);
        let bytes = state.sessions.change(session, give).unwrap_or(0);
        actions.push(Action::Unpin { session, bytes });
        given += bytes;
    }
    given
}

/// Asks one session to make places, if any session should.
pub(crate) fn pin(state: &mut State, actions: &mut Vec<Action>) {
    torture_places(state, actions);
    if pinned_until(state).is_some() {
        return;
    }
    let may_be_asked = lacking(state).filter(|(_, one, _)| one.ahead.retry_at <= state.now);
    // The session that would make way first.
    let first = may_be_asked.min_by_key(|(id, one, _)| (one.activity, one.used_at, *id));
    if let Some((session, _, bytes)) = first {
        let since = state.now;
        state
            .sessions
            .change(session, |one| one.begin_to_pin(bytes, since));
        actions.push(Action::Pin { session, bytes });
    }
}

/// When the next session may be asked to make places, if nothing happens before.
pub(crate) fn pins_at(state: &State) -> Option<Duration> {
    let retry_at = lacking(state).map(|(_, one, _)| one.ahead.retry_at).min()?;
    Some(pinned_until(state).unwrap_or(retry_at))
}

/// Until when to wait for the session that is making places. One session at a time makes places, but a
/// session that does not answer is not waited for longer than `late`.
fn pinned_until(state: &State) -> Option<Duration> {
    if state.sessions.sums().pinning == 0 {
        return None;
    }
    let asked = state.sessions.values().filter_map(|one| one.ahead.asked);
    let until = asked.map(|asked| asked.since + state.settings.late);
    until.filter(|time| *time > state.now).min()
}

/// The sessions that should make places, and for how many bytes.
fn lacking(state: &State) -> impl Iterator<Item = (SessionId, &Session, u64)> {
    let sums = state.sessions.sums();
    let expected = match sums.leaving + sums.coming {
        0 => expected_to_leave(state),
        _ => 0,
    };
    let room = (state.host_bytes() / 2).saturating_sub(state.places_bytes());
    let sessions = (expected > 0).then(|| state.sessions.iter());
    let all = sessions.into_iter().flatten();
    all.filter_map(move |(id, one)| {
        let bytes = lacks_places(state, one, expected, room)?;
        Some((*id, one, bytes))
    })
}

/// How much is likely to leave the GPU when another session needs room there.
fn expected_to_leave(state: &State) -> u64 {
    let sums = state.sessions.sums();
    if state.settings.pin_bytes == 0 {
        return 0;
    }
    if state.settings.torture.is_some() {
        return u64::MAX;
    }
    let wanted = sums.bytes_wanted as u64 + state.settings.memory.reserve_bytes;
    let beyond = wanted.saturating_sub(state.usable_bytes());
    match sums.rivals {
        2.. if beyond > 0 => beyond + state.settings.part_bytes,
        _ => 0,
    }
}

/// For how many bytes the session should make places, if for any.
fn lacks_places(state: &State, session: &Session, expected: u64, room: u64) -> Option<u64> {
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
    let bytes = lacking.min(room).min(state.settings.pin_bytes);
    // Less than one part is not worth it, unless that is all the session lacks.
    (bytes > 0 && bytes >= lacking.min(state.settings.part_bytes)).then_some(bytes)
}

/// For tests of moves: sometimes gives up places although no session needs the room.
fn torture_places(state: &mut State, actions: &mut Vec<Action>) {
    let Some(seed) = state.settings.torture else {
        return;
    };
    if std::mem::replace(&mut state.tortured, state.epoch) == state.epoch {
        return;
    }
    let number = state.random_number(seed);
    let ahead = state.sessions.sums().ahead_bytes as u64;
    if number.is_multiple_of(4) && ahead > 0 {
        give_back(state, (number >> 8) % ahead + 1, |_| true, actions);
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
