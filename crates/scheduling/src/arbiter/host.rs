//! Room on the host for memory that leaves the GPU.
//!
//! The *overflow* is the memory of sessions that does not fit on the GPU together. It is always on the host. A
//! session that returns needs room on the GPU for its memory on the host; until it has moved in, the host holds
//! that memory and the overflow. An allocation is allowed only if every session can still return. That holds
//! if, for each session, the most it may have on the host fits there together with the overflow. It also holds
//! if the host has room for the memory of all sessions.
//!
//! A session's places on the host count towards its own memory limit too. What its limit does not leave room for
//! never leaves the GPU, so for all other sessions it counts as fixed memory.
//!
//! A session that makes way moves out no more than is needed. So it has at most the overflow on the host,
//! rounded up to a whole part. Only a session that moves out because it sleeps, and not because others need the
//! room, could have more there.
//!
//! When memory returns to the GPU, its place on the host stays pinned for the next move, until others need the
//! room. Places that were made ahead of a move do not count here, because they are given up first; see
//! `ahead.rs`.

use crate::arbiter::{
    Action, SessionId, ahead,
    session::{Residency, Session},
    state::State,
};

/// Room on the host for memory that has no place there yet.
pub(crate) fn room(state: &State) -> u64 {
    state.host_bytes().saturating_sub(pinned_bytes(state))
}

/// All places on the host, except those made ahead: memory that was on the host keeps its place there.
fn pinned_bytes(state: &State) -> u64 {
    let sessions = state.sessions.values();
    sessions
        .map(|one| one.filled_bytes() + one.free_pinned_bytes())
        .sum()
}

/// Whether every session could still return after `id` has grown by `bytes`, even if not all memory fits on
/// the GPU.
pub(crate) fn allows(state: &State, id: SessionId, bytes: u64) -> bool {
    let overflow = overflow_with(state, bytes);
    let most_to_leave = overflow + state.settings.part_bytes;
    let can_return = |(other, one): (&SessionId, &Session)| {
        let grown = one.growing_bytes + if *other == id { bytes } else { 0 };
        // Memory that it allocates while it is swapped out moves in with the rest.
        let mut returns = one.bytes_to_return();
        if one.residency != Residency::Resident {
            returns += grown;
        }
        let most_returns = returns.max(most_to_leave.min(one.bytes + grown));
        most_returns + most_to_leave <= state.host_bytes()
    };
    // If the host has room for all memory, no session can be in the way of another.
    let has_room = || {
        state.movable_bytes() + bytes <= state.host_bytes() || state.sessions.iter().all(can_return)
    };
    overflow == 0 || (limits_allow(state, id, bytes) && has_room())
}

/// Whether every session could still return after `id` has grown by `bytes`, although sessions keep memory on
/// the GPU that must not leave it by their own limits.
fn limits_allow(state: &State, id: SessionId, bytes: u64) -> bool {
    let (mut staying, mut most_returns) = (0, 0);
    for (other, one) in state.sessions.iter() {
        let grown = if *other == id { bytes } else { 0 };
        let all = one.bytes + one.growing_bytes + grown;
        let limit = one.limit_bytes.unwrap_or(u64::MAX);
        let leaving = in_whole_parts(state, all, limit);
        staying += all - leaving;
        most_returns = most_returns.max(leaving);
    }
    staying == 0 || state.fixed_bytes() + staying + most_returns <= state.usable_bytes()
}

/// The overflow after an allocation of `bytes`.
fn overflow_with(state: &State, bytes: u64) -> u64 {
    (state.fixed_bytes() + state.movable_bytes() + bytes).saturating_sub(state.usable_bytes())
}

/// Returns a function that computes how much memory can move out, once all sessions that rest have given up
/// their empty places. Its arguments are the bytes that the sessions which make way can move, and their own
/// empty places.
pub(crate) fn room_under_pressure(state: &State) -> impl Fn(u64, u64) -> u64 {
    let sessions = state.sessions.values();
    let kept = sessions.map(|one| {
        let empty = if one.rests() {
            0
        } else {
            one.free_pinned_bytes()
        };
        one.filled_bytes() + empty
    });
    let room_now = room(state);
    let room = state.host_bytes().saturating_sub(kept.sum());
    move |there_bytes, own_bytes| in_whole_parts(state, there_bytes, room.max(own_bytes + room_now))
}

/// How much of the session's memory can leave by its own limits.
pub(crate) fn can_leave(state: &State, session: &Session) -> u64 {
    in_whole_parts(
        state,
        session.bytes_there(),
        session.can_leave_within_limits(),
    )
}

/// How many bytes to request so that no more than `room` leave, because memory leaves in whole parts.
fn in_whole_parts(state: &State, there_bytes: u64, room: u64) -> u64 {
    if there_bytes <= room {
        there_bytes
    } else {
        room.saturating_sub(state.settings.part_bytes)
    }
}

/// Room for memory that moves out before other sessions need the room. Each session may have at most half
/// of the host's room. With that limit, such moves never cause a refused allocation, and every session can
/// return.
pub(crate) fn room_unasked(state: &State, session: &Session) -> u64 {
    let half = state.host_bytes() / 2;
    let room = session.free_pinned_bytes() + room(state);
    let room = room.min(half.saturating_sub(session.bytes_to_return()));
    let room = room.min(session.can_leave_within_limits());
    in_whole_parts(state, session.bytes_there(), room)
}

/// Whether all of the session's memory can move out such that the session can return.
pub(crate) fn has_room_for(state: &State, session: &Session) -> bool {
    can_leave(state, session) == session.bytes_there()
        && session.bytes_there() <= session.free_pinned_bytes() + room(state)
        && session.bytes + overflow_with(state, 0) <= state.host_bytes()
}

/// Makes room on the host for this many bytes of `leaving`. Others give up places that were made ahead
/// first, then the largest empty places, so that few sessions have to pin again.
pub(crate) fn unpin_for(
    state: &mut State,
    leaving: SessionId,
    bytes: u64,
    actions: &mut Vec<Action>,
) {
    let one = &state.sessions[&leaving];
    let most = (bytes.saturating_add(state.settings.part_bytes)).min(one.bytes_there());
    let (before, after) = (one.places_bytes(), one.filled_bytes() + most);
    let new = after.saturating_sub(before);
    loop {
        let lacking = (state.places_bytes() + new).saturating_sub(state.host_bytes());
        if new == 0 || lacking == 0 {
            return;
        }
        if ahead::give_back(state, lacking, |id| id != leaving, actions) > 0 {
            continue;
        }
        let others = state.sessions.iter().filter(|(id, _)| **id != leaving);
        let empty = others
            .filter(|(_, other)| other.rests() && other.free_pinned_bytes() > 0)
            .max_by_key(|(_, other)| other.free_pinned_bytes());
        let Some((id, _)) = empty else { return };
        let session = *id;
        state.sessions.change(session, Session::unpin);
        let bytes = u64::MAX;
        actions.push(Action::Unpin { session, bytes });
    }
}
