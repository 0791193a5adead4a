//! Which sessions have their memory on the GPU.

use crate::arbiter::{
    Action, SessionId, host, needs,
    session::{Activity, Release, Residency, Session, Trim},
    state::State,
};
use std::time::Duration;

/// Records a requested allocation, or refuses it if it could never succeed. That is the case if it is
/// larger than the GPU's memory without what always stays there. If not all memory fits on the GPU
/// together, it is also the case if the host has too little room for every session to return. A request for
/// nothing is granted at once.
pub(crate) fn ask_to_grow(state: &mut State, id: SessionId, bytes: u64, actions: &mut Vec<Action>) {
    if bytes == 0 {
        return actions.push(Action::Grow { session: id, bytes });
    }
    let fixed = state.fixed_bytes();
    let usable = state.settings.memory.usable_bytes;
    let Some(session) = state.sessions.get(&id) else {
        return;
    };
    let own = session.bytes + session.growing_bytes + bytes;
    let refused = session.is_hopeless
        || fixed + own > usable
        || (fixed + state.movable_bytes() + bytes > usable && !host::allows(state, id, bytes));
    if refused {
        actions.push(Action::Refuse { session: id, bytes });
    }
    state.sessions.change(id, |session| {
        session.is_hopeless = false;
        if !refused {
            session.growing_bytes += bytes;
        }
    });
}

/// Grants allocations for which there is room, and those that need no room yet.
pub(crate) fn grow(state: &mut State, actions: &mut Vec<Action>) {
    if state.sessions.sums().growing == 0 {
        return;
    }
    let growing = state
        .sessions
        .iter()
        .filter(|(_, one)| one.growing_bytes > 0);
    for session in growing.map(|(id, _)| *id).collect::<Vec<_>>() {
        let free = state.free_bytes();
        let one = &state.sessions[&session];
        let bytes = one.growing_bytes;
        if one.is_swapped_out() || (one.is_resident() && bytes <= free) {
            state.sessions.change(session, |one| {
                one.grow(bytes);
                one.growing_bytes = 0;
            });
            actions.push(Action::Grow { session, bytes });
        }
    }
}

/// Begins at most one move in each direction.
pub(crate) fn transfer(state: &mut State, actions: &mut Vec<Action>) {
    let since = state.now;
    let is_leaving = state.sessions.sums().leaving > 0;
    if state.sessions.sums().coming == 0
        && let Some(id) = next_to_come(state)
    {
        let coming = Residency::Coming { since };
        state
            .sessions
            .change(id, |session| session.residency = coming);
        actions.push(Action::SwapIn(id));
    }
    ask_to_trim(state, actions);
    if !is_leaving && let Some((id, bytes)) = next_to_leave(state) {
        host::unpin_for(state, id, bytes, actions);
        let leave = |session: &mut Session| {
            session.begin_to_leave(bytes, since);
            session.bytes_leaving()
        };
        if let Some(bytes) = state.sessions.change(id, leave) {
            actions.push(Action::SwapOut { session: id, bytes });
        }
    }
}

/// The next session to swap in: the one that needs room now, or one with a cell for which there is room.
fn next_to_come(state: &State) -> Option<SessionId> {
    if state.sessions.sums().swapped_out == 0 {
        return None;
    }
    let free = state.free_bytes();
    let is_ready =
        |session: &Session| session.is_swapped_out() && session.swapped_out_bytes <= free;
    if let Some(id) = needs::needy(state) {
        return is_ready(&state.sessions[&id]).then_some(id);
    }
    let expected = state.sessions.iter().find(|(_, session)| {
        session.activity == Activity::Running && session.retry_at <= state.now && is_ready(session)
    });
    expected.map(|(id, _)| *id)
}

/// The next session to swap out, and how many of its bytes: as many as are needed, or all it can move if no
/// session waits for them.
fn next_to_leave(state: &State) -> Option<(SessionId, u64)> {
    let is_chosen = |one: &Session| {
        one.release == Release::Chosen && one.may_leave() && host::has_room_for(state, one)
    };
    if state.sessions.sums().chosen > 0
        && let Some(id) = victim(state, |_, one| is_chosen(one))
    {
        return Some((id, u64::MAX));
    }
    if let Some(needy) = needs::needy(state) {
        let needed = state.sessions[&needy].bytes_needed();
        let short = needed.saturating_sub(state.room_with_leaving());
        if short == 0 || !needs::fits_beside_holders(state, needy) {
            return None;
        }
        let room = host::room_under_pressure(state);
        let room_for =
            |session: &Session| room(host::can_leave(state, session), session.free_pinned_bytes());
        let victim = victim(state, |id, session| {
            needs::must_leave(state, id, session, needy) && room_for(session) > 0
        })?;
        let session = &state.sessions[&victim];
        let can_leave = room_for(session);
        let trims = trims_until(state, session).is_some();
        return (!trims).then_some((victim, short.min(can_leave)));
    }
    if let Some(seed) = state.settings.torture {
        return victim_of_torture(state, seed);
    }
    if !lacks_reserve(state) {
        return None;
    }
    let asleep = victim(state, |_, session| {
        sleeps_at(state, session).is_some_and(|time| time <= state.now)
            && session.may_leave()
            && host::room_unasked(state, session) > 0
    })?;
    Some((asleep, host::room_unasked(state, &state.sessions[&asleep])))
}

/// Asks all sessions that could make room in this way. A session that computes does so at the end of its
/// cell.
fn ask_to_trim(state: &mut State, actions: &mut Vec<Action>) {
    let Some(needy) = needs::needy(state) else {
        return;
    };
    if state.sessions[&needy].bytes_needed() <= state.room_with_leaving() {
        return;
    }
    let others = state.sessions.iter().filter(|(id, _)| **id != needy);
    let able = others.filter(|(_, one)| one.trim == Trim::Can && one.bytes_there() > 0);
    for id in able.map(|(id, _)| *id).collect::<Vec<_>>() {
        let since = state.now;
        state
            .sessions
            .change(id, |one| one.trim = Trim::Asked { since });
        actions.push(Action::Trim(id));
    }
}

fn trims_until(state: &State, session: &Session) -> Option<Duration> {
    let until = session.trims_until(state.settings.trim_limit);
    until.filter(|time| *time > state.now)
}

/// When the time of the first session that was asked to trim is over.
pub(crate) fn next_trimmed_at(state: &State) -> Option<Duration> {
    let asked = state.sessions.values();
    asked.filter_map(|one| trims_until(state, one)).min()
}

/// Any session that rests, and any part of its memory: a pseudo-random choice by the seed and the number of
/// leases so far.
fn victim_of_torture(state: &State, seed: u64) -> Option<(SessionId, u64)> {
    let restful = state
        .sessions
        .iter()
        .filter(|(_, one)| one.may_leave() && !one.fresh);
    let restful: Vec<(SessionId, u64)> = restful
        .map(|(id, one)| (*id, one.bytes_there().min(host::room_unasked(state, one))))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    let number = state.random_number(seed);
    let (id, bytes) = *restful.get(number as usize % restful.len().max(1))?;
    Some((id, (number >> 8) % bytes + 1))
}

/// When the next session falls asleep whose memory must then leave.
pub(crate) fn next_sleeps_at(state: &State) -> Option<Duration> {
    let sessions = state.sessions.values().filter(|_| lacks_reserve(state));
    let awake = sessions.filter(|session| session.may_leave());
    awake
        .filter_map(|session| sleeps_at(state, session))
        .filter(|time| *time > state.now)
        .min()
}

fn lacks_reserve(state: &State) -> bool {
    state.room_with_leaving() < state.settings.memory.reserve_bytes
}

fn sleeps_at(state: &State, session: &Session) -> Option<Duration> {
    let sleeps_at = session.used_at + state.settings.sleeps_after;
    session.is_idle().then_some(sleeps_at)
}

/// Sessions without a cell come first, then the least recently used.
fn victim(state: &State, is_meant: impl Fn(SessionId, &Session) -> bool) -> Option<SessionId> {
    state
        .sessions
        .iter()
        .filter(|(id, session)| is_meant(**id, session))
        .min_by_key(|(_, session)| (session.activity, session.used_at))
        .map(|(id, _)| *id)
}
