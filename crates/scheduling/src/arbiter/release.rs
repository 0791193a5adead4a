//! Sessions leave the GPU with their contexts when the driver has too little memory and moving memory is not
//! enough.

use crate::arbiter::{
    Action, EndReason, SessionId, host,
    session::{Lease, Release, Session},
    state::State,
};
use std::time::Duration;

/// The driver had no room for the session to return.
pub(crate) fn no_room(
    state: &mut State,
    id: SessionId,
    bytes: u64,
    free_bytes: u64,
    actions: &mut Vec<Action>,
) {
    if state.sessions.get(&id).is_some_and(Session::is_coming) {
        let retry_at = state.now + state.settings.retry;
        state.sessions.change(id, |one| one.stay_away(retry_at));
        find_full(state, id, bytes, free_bytes, actions);
    }
}

/// The driver had no room for memory that fits according to the ledger.
pub(crate) fn find_full(
    state: &mut State,
    id: SessionId,
    needed_bytes: u64,
    free_bytes: u64,
    actions: &mut Vec<Action>,
) {
    let Some(own) = state.sessions.get(&id).map(Session::bytes_there) else {
        return;
    };
    // Whatever the driver reports, less than needed was free.
    let free = free_bytes.min(needed_bytes.saturating_sub(1));
    let there = state.bytes_on_gpu() + free;
    let missing = (state.fixed_bytes() + own + needed_bytes).saturating_sub(there);
    state.shortage.find(there, state.now, &state.settings);
    let lasted = state.shortage.lasted();
    if missing > 0 && lasted >= state.settings.late {
        choose(state, id, missing, actions);
    } else if lasted >= state.settings.drain_limit {
        // The ledger does not explain what the driver lacks.
        despair(state, id, actions);
    }
}

/// Chooses sessions without a cell that leave the GPU, least recently used first, once those chosen before have had
/// time to leave. If there is none, and none is about to leave, further requests of `id` are refused.
fn choose(state: &mut State, id: SessionId, missing: u64, actions: &mut Vec<Action>) {
    let now = state.now;
    let patience = match any_leaves(state) {
        true => state.settings.drain_limit,
        false => state.settings.late,
    };
    let released_at = state.shortage.released_at;
    if released_at.is_some_and(|time| now - time < patience) {
        return;
    }
    let mut idle: Vec<(Duration, SessionId)> = others_with_contexts(state, id)
        .filter(|(_, one)| one.is_idle() && host::has_room_for(state, one))
        .map(|(other, one)| (one.used_at, other))
        .collect();
    idle.sort_unstable();
    let contexts = others_with_contexts(state, id).count() as u64 + 1;
    let context_bytes = (state.shortage.bytes() / contexts).max(1);
    idle.truncate(missing.div_ceil(context_bytes) as usize);
    if idle.is_empty() {
        return despair(state, id, actions);
    }
    state.shortage.released_at = Some(now);
    for (_, other) in idle {
        state
            .sessions
            .change(other, |one| one.release = Release::Chosen);
    }
}

/// No session can leave now. Further requests of `id` are refused, unless another session is about to leave. A
/// session that has waited long for its memory to return, while no other session has computed, is ended.
fn despair(state: &mut State, id: SessionId, actions: &mut Vec<Action>) {
    let limit = state.settings.drain_limit;
    let is_long = state.shortage.lasted() >= limit;
    let is_alone = others_with_contexts(state, id).next().is_none();
    let is_standstill =
        others_with_contexts(state, id).all(|(_, one)| one.used_at + limit <= state.now);
    let any_leaves = any_leaves(state);
    let returns = state.sessions[&id].is_swapped_out();
    state.sessions.change(id, |session| {
        session.is_hopeless = !returns && (is_long || (is_alone && !any_leaves));
        if returns && is_long && is_standstill {
            session.lease = Lease::Ending;
            actions.push(Action::End {
                session: id,
                reason: EndReason::NoRoom,
            });
        }
    });
}

fn any_leaves(state: &State) -> bool {
    let leaves = |one: &Session| matches!(one.release, Release::Chosen | Release::Requested);
    state.sessions.values().any(leaves)
}

fn others_with_contexts(
    state: &State,
    id: SessionId,
) -> impl Iterator<Item = (SessionId, &Session)> {
    let others = state
        .sessions
        .iter()
        .filter(move |(other, _)| **other != id);
    let here = others.filter(|(_, one)| one.has_context && one.release == Release::No);
    here.map(|(other, one)| (*other, one))
}

/// Releases the chosen sessions that have nothing left on the GPU but their contexts.
pub(crate) fn release_chosen(state: &mut State, actions: &mut Vec<Action>) {
    if state.sessions.sums().chosen == 0 {
        return;
    }
    let rests = |one: &Session| one.is_swapped_out() || one.is_resident();
    let bare = |one: &Session| rests(one) && one.bytes_there() == 0;
    let chosen = state.sessions.iter();
    let leaving =
        chosen.filter(|(_, one)| one.release == Release::Chosen && one.is_idle() && bare(one));
    for id in leaving.map(|(id, _)| *id).collect::<Vec<_>>() {
        state
            .sessions
            .change(id, |one| one.release = Release::Requested);
        actions.push(Action::Release(id));
    }
}

/// Forgets an old shortage, so that a session that waits for room can try again.
pub(crate) fn doubt_shortage(state: &mut State) {
    if doubted_at(state).is_some_and(|time| time <= state.now) {
        state.shortage.forget();
    }
}

/// When the shortage is next doubted.
pub(crate) fn doubted_at(state: &State) -> Option<Duration> {
    let left_out = |one: &Session| state.wants_room(one) && !state.could_fit(one);
    let is_felt = || state.sessions.values().any(left_out);
    state.shortage.doubted_at(is_felt, &state.settings)
}
