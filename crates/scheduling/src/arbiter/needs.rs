//! For which session room is made on the GPU, and which sessions make way for it.

use crate::arbiter::{
    SessionId, host,
    session::Session,
    state::{State, best},
};

/// The next session that can compute without moving memory. A session whose memory must make way for a
/// session before it does not compute.
pub(crate) fn next_resident(state: &State) -> Option<SessionId> {
    let needy = needy(state);
    state.front(|id, session| {
        session.is_resident() && needy.is_none_or(|needy| !blocks(state, id, needy))
    })
}

/// The session for which room is made: it allocates or returns, and it is next in the order. A session that
/// computes comes before all others.
pub(crate) fn needy(state: &State) -> Option<SessionId> {
    if state.sessions.sums().growing == 0 && state.sessions.sums().swapped_out == 0 {
        return None;
    }
    let needy = state
        .sessions
        .iter()
        .filter(|(_, session)| needs_room(state, session));
    let computing = needy.clone().find(|(_, session)| session.computes());
    let priorities = needy.map(|(id, session)| (*id, state.priority(session)));
    computing.map(|(id, _)| *id).or_else(|| best(priorities))
}

/// Whether there is room for the session once all sessions that do not compute have made way.
pub(crate) fn fits_beside_holders(state: &State, id: SessionId) -> bool {
    room_without(state, id, id) >= state.sessions[&id].bytes_needed()
}

/// Whether `needy`, which comes before session `id`, finds no room while that session computes.
pub(crate) fn blocks(state: &State, id: SessionId, needy: SessionId) -> bool {
    must_leave(state, id, &state.sessions[&id], needy)
        && room_without(state, id, needy) < state.sessions[&needy].bytes_needed()
}

/// The room that sessions which do not compute can make for `needy` while `kept` stays.
fn room_without(state: &State, kept: SessionId, needy: SessionId) -> u64 {
    let must_leave =
        |id: SessionId, session: &Session| id != kept && must_leave(state, id, session, needy);
    let possible = state
        .sessions
        .iter()
        .filter(|(id, session)| must_leave(**id, session));
    let (mut there, mut with_pinned) = (0, 0);
    for (_, session) in possible {
        let can_leave = host::can_leave(state, session);
        there += can_leave;
        with_pinned += can_leave.min(session.free_pinned_bytes());
    }
    state.room_with_leaving() + host::room_under_pressure(state)(there, with_pinned)
}

fn needs_room(state: &State, session: &Session) -> bool {
    state.wants_room(session) && state.could_fit(session)
}

/// A waiting session makes way only for a session before it. If it has not computed since its swap-in, it
/// makes way only for a better rank.
pub(crate) fn must_leave(
    state: &State,
    id: SessionId,
    session: &Session,
    needy: SessionId,
) -> bool {
    if id == needy || !session.may_leave() {
        return false;
    }
    let needing = &state.sessions[&needy];
    if !session.waits() || needing.computes() {
        return true;
    }
    let (own, other) = (state.priority(session), state.priority(needing));
    if session.fresh {
        other.rank < own.rank
    } else {
        // Of two equal priorities, `needy` is the first.
        (other, needy) < (own, id)
    }
}
