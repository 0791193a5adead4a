//! A session needs room, no session computes or moves, and memory that should leave finds no room on the host.

use crate::arbiter::{Action, EndReason, SessionId, Settings, needs, session::Lease, state::State};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Deadlock {
    since: Option<Duration>,
}

impl Deadlock {
    /// After a while, refuses the allocation of the session that needs room, or ends the session.
    pub(crate) fn resolve(&mut self, state: &mut State, actions: &mut Vec<Action>) {
        let Some(id) = stuck(state) else {
            self.since = None;
            return;
        };
        let since = *self.since.get_or_insert(state.now);
        if state.now < since + state.settings.drain_limit {
            return;
        }
        self.since = None;
        state.sessions.change(id, |session| {
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

    pub(crate) fn resolved_at(&self, settings: &Settings) -> Option<Duration> {
        Some(self.since? + settings.drain_limit)
    }
}

/// The session that needs room.
fn stuck(state: &State) -> Option<SessionId> {
    let sums = state.sessions.sums();
    if state.sessions.count_computing() > 0 || sums.leaving + sums.coming > 0 {
        return None;
    }
    needs::needy(state).filter(|id| !needs::fits_beside_holders(state, *id))
}
