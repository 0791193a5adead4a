//! Which sessions get a lease, and when a lease is preempted.

use crate::arbiter::{
    Action, EndReason, SessionId, needs,
    session::{Lease, Session},
    state::{Priority, Rank, State},
};
use std::{cmp::Ordering, time::Duration};

/// Ends sessions that have kept the GPU too long, or whose memory has not moved in time.
pub(crate) fn end_overdue(state: &mut State, actions: &mut Vec<Action>) {
    let overdue = deadlines(state).filter(|(_, time)| *time <= state.now);
    for id in overdue.map(|(id, _)| id).collect::<Vec<_>>() {
        state
            .sessions
            .change(id, |session| session.lease = Lease::Ending);
        actions.push(Action::End {
            session: id,
            reason: EndReason::Kept,
        });
    }
}

/// The deadlines of sessions that compute or move memory.
fn deadlines(state: &State) -> impl Iterator<Item = (SessionId, Duration)> {
    let sums = state.sessions.sums();
    let moves = sums.leaving + sums.coming > 0;
    let all = moves.then(|| state.sessions.iter().map(|(id, session)| (*id, session)));
    let computing = (!moves).then(|| state.sessions.computing());
    let bound = all
        .into_iter()
        .flatten()
        .chain(computing.into_iter().flatten());
    bound.filter_map(|(id, session)| Some((id, session.deadline(&state.settings)?)))
}

/// Takes leases back from sessions that have had their time. If a session that computes finds no room for
/// its allocation, all others lose their leases.
pub(crate) fn take_back(state: &mut State, actions: &mut Vec<Action>) {
    if state.sessions.count_computing() == 0 {
        return;
    }
    let crowded = needs::needy(state).filter(|id| !needs::fits_beside_holders(state, *id));
    for id in [needs::next_resident(state), crowded].into_iter().flatten() {
        let rival = &state.sessions[&id];
        let (priority, computes) = (state.priority(rival), rival.computes());
        // Only a session with a lease can lose one.
        let others = state.sessions.computing().filter(|(other, _)| *other != id);
        let losing = others.filter(|(_, session)| computes || yields(state, session, priority));
        for other in losing.map(|(other, _)| other).collect::<Vec<_>>() {
            preempt(state, other, actions);
        }
    }
}

/// Whether `holder` must give up its lease for a session with this priority.
fn yields(state: &State, holder: &Session, rival: Priority) -> bool {
    let Lease::Holding {
        since,
        level,
        guaranteed,
        ..
    } = holder.lease
    else {
        return false;
    };
    let settings = &state.settings;
    let held = state.now - since;
    if held < holder.swap_time.mul_f64(settings.swap_floor) {
        return false;
    }
    if guaranteed && held < settings.guaranteed_slice {
        return rival.rank == Rank::Level(0) && held >= settings.guaranteed_floor;
    }
    let has_had_its_quantum = state.level(holder) > level || held >= settings.slice;
    match rival.rank.cmp(&Rank::Level(state.level(holder))) {
        Ordering::Less => true,
        Ordering::Equal => has_had_its_quantum && rival.used <= state.priority(holder).used,
        Ordering::Greater => false,
    }
}

/// Takes back the session's lease, if it has one.
pub(crate) fn preempt(state: &mut State, id: SessionId, actions: &mut Vec<Action>) {
    if let Some(session) = state.sessions.get(&id)
        && let Lease::Holding { epoch, .. } = session.lease
    {
        let deadline = state.now + state.settings.drain_limit;
        state.sessions.change(id, |session| {
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

pub(crate) fn grant(state: &mut State, actions: &mut Vec<Action>) {
    while may_be_joined(state)
        && let Some(id) = needs::next_resident(state)
    {
        let is_alone = state.sessions.count_computing() == 0;
        if !is_alone && needs::needy(state).is_some_and(|needy| needy != id) {
            return;
        }
        let session = &state.sessions[&id];
        let (rank, level) = (state.priority(session).rank, state.level(session));
        state.epoch += 1;
        let lease = Lease::Holding {
            epoch: state.epoch,
            since: state.now,
            level,
            guaranteed: rank == Rank::Overdue,
        };
        state.sessions.change(id, |session| {
            session.fresh = false;
            session.lease = lease;
        });
        actions.push(Action::Grant {
            session: id,
            epoch: state.epoch,
        });
    }
}

/// Whether one more session may compute: if none computes, or if only cells of the lowest level compute and
/// no other level waits.
fn may_be_joined(state: &State) -> bool {
    let computing = state.sessions.count_computing();
    let lowest = state.settings.lowest();
    let lets_in = |session: &Session| session.holds() && state.level(session) == lowest;
    computing == 0
        || (computing < state.settings.together
            && !(0..lowest).any(|level| state.sessions.any_waits_in(level))
            && state
                .sessions
                .computing()
                .all(|(_, session)| lets_in(session)))
}

/// When a lease may have to end, or one may be granted, if nothing happens before. Some of these times may have
/// passed.
pub(crate) fn wake_times(state: &State) -> impl Iterator<Item = Duration> {
    let is_wanted = state.sessions.any_waits() || needs::needy(state).is_some();
    let holders = state.sessions.computing().filter(move |_| is_wanted);
    holders
        .flat_map(|(_, holder)| end_times(state, holder))
        .chain([state.guaranteed_overdue_at()])
        .flatten()
        .chain(deadlines(state).map(|(_, time)| time))
}

/// When the session may have to give up its lease, if it has one.
fn end_times(state: &State, holder: &Session) -> [Option<Duration>; 5] {
    let Lease::Holding {
        since, guaranteed, ..
    } = holder.lease
    else {
        return [None; 5];
    };
    let settings = &state.settings;
    let slices = (state.now - since).as_nanos() / settings.slice.as_nanos() + 1;
    let floor = since + holder.swap_time.mul_f64(settings.swap_floor);
    let next_level = settings.until_next_level(holder.attained);
    let computing = state.sessions.count_computing() as u32;
    [
        Some(floor),
        next_level.map(|left| state.now + left * computing),
        Some(since + settings.slice * slices as u32),
        guaranteed.then_some(since + settings.guaranteed_floor),
        guaranteed.then_some(since + settings.guaranteed_slice),
    ]
}
