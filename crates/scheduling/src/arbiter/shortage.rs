//! GPU memory that is in use although the ledger counts it for no session: contexts, and programs outside
//! Baton.
//!
//! In: how much the driver had left when there was not enough room. Out: how much memory there is to share, and
//! which sessions should leave the GPU when moving memory is not enough. A shortage is assumed to be over after a
//! while, because the driver does not report when it ends.

use crate::arbiter::{
    Action, Arbiter, EndReason, SessionId,
    session::{Lease, Release, Session},
};
use std::time::Duration;

/// How long a shortage is believed without being found again.
const OLD: Duration = Duration::from_secs(60);

/// A shortage is over if it was not found again for this many tries.
const TRIES: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Shortage {
    bytes: u64,
    /// `None` if none was ever found.
    found_at: Option<Duration>,
    /// Since when it has been found repeatedly.
    since: Duration,
    /// When sessions were last chosen to leave the GPU.
    released_at: Option<Duration>,
}

impl Shortage {
    /// Assumes that there is room again.
    fn forget(&mut self) {
        self.bytes = 0;
    }

    /// How long it had lasted when it was last found.
    fn lasted(&self) -> Duration {
        let found_at = self.found_at.unwrap_or_default();
        found_at.saturating_sub(self.since)
    }

    /// Memory returns to the driver from now on, with some delay.
    pub(crate) fn begin_anew(&mut self, now: Duration) {
        self.forget();
        self.since = now;
    }
}

impl Arbiter {
    /// How much of the GPU's memory all sessions may have together.
    pub(crate) fn usable_bytes(&self) -> u64 {
        let usable = self.settings.memory.usable_bytes;
        usable.saturating_sub(self.shortage.bytes)
    }

    /// Whether the session would fit if all others moved their memory out.
    pub(crate) fn could_fit(&self, session: &Session) -> bool {
        if self.shortage.bytes == 0 {
            return true;
        }
        self.fixed_bytes() + session.bytes + session.growing_bytes <= self.usable_bytes()
    }

    /// The driver had no room for memory that fits according to the ledger.
    pub(crate) fn find_full(
        &mut self,
        id: SessionId,
        needed_bytes: u64,
        free_bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        let retry_at = self.now + self.settings.retry;
        let own = self.sessions.change(id, |session| {
            if session.is_coming() {
                session.stay_away(retry_at);
                return session.bytes_there();
            }
            session.shrink(needed_bytes, 0);
            session.bytes
        });
        let Some(own) = own else { return };
        // Whatever the driver reports, less than needed was free.
        let free = free_bytes.min(needed_bytes.saturating_sub(1));
        let there = self.bytes_on_gpu() + free;
        let missing = (self.fixed_bytes() + own + needed_bytes).saturating_sub(there);
        self.note_shortage(there);
        let lasted = self.shortage.lasted();
        if missing > 0 && lasted >= self.settings.late {
            self.release(id, missing, actions);
        } else if lasted >= self.settings.drain_limit {
            // The ledger does not explain what the driver lacks.
            self.despair(id, actions);
        }
    }

    fn note_shortage(&mut self, there: u64) {
        let now = self.now;
        let shortage = &mut self.shortage;
        let between_tries = self.settings.late.max(self.settings.retry);
        let is_known = |found_at: Duration| now - found_at <= between_tries * TRIES;
        if !shortage.found_at.is_some_and(is_known) {
            shortage.since = now;
        }
        shortage.bytes = self.settings.memory.usable_bytes.saturating_sub(there);
        shortage.found_at = Some(now);
    }

    /// Chooses sessions without a cell that leave the GPU, least recently used first. If there is none, and none is
    /// about to leave, further requests of `id` are refused.
    fn release(&mut self, id: SessionId, missing: u64, actions: &mut Vec<Action>) {
        let now = self.now;
        let released_at = self.shortage.released_at;
        if released_at.is_some_and(|time| now - time < self.settings.late) {
            return;
        }
        let mut idle: Vec<(Duration, SessionId)> = self
            .others_with_contexts(id)
            .filter(|(_, one)| one.is_idle() && self.host_has_room_for(one))
            .map(|(other, one)| (one.used_at, other))
            .collect();
        idle.sort_unstable();
        let contexts = self.others_with_contexts(id).count() as u64 + 1;
        let context_bytes = (self.shortage.bytes / contexts).max(1);
        idle.truncate(missing.div_ceil(context_bytes) as usize);
        if idle.is_empty() {
            return self.despair(id, actions);
        }
        self.shortage.released_at = Some(now);
        for (_, other) in idle {
            self.sessions
                .change(other, |one| one.release = Release::Chosen);
        }
    }

    /// Releases the chosen sessions that have nothing left on the GPU but their contexts.
    pub(crate) fn release_gpu(&mut self, actions: &mut Vec<Action>) {
        if self.sessions.sums().chosen == 0 {
            return;
        }
        let rests = |one: &Session| one.is_swapped_out() || one.is_resident();
        let bare = |one: &Session| rests(one) && one.bytes_there() == 0;
        let chosen = self.sessions.iter();
        let leaving =
            chosen.filter(|(_, one)| one.release == Release::Chosen && one.is_idle() && bare(one));
        for id in leaving.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.sessions
                .change(id, |one| one.release = Release::Requested);
            actions.push(Action::Release(id));
        }
    }

    /// No session can leave now. Further requests of `id` are refused, unless another session is about to leave. A
    /// session that has waited long for its memory to return, while no other session has computed, is ended.
    fn despair(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let limit = self.settings.drain_limit;
        let is_long = self.shortage.lasted() >= limit;
        let is_alone = self.others_with_contexts(id).next().is_none();
        let is_standstill = self
            .others_with_contexts(id)
            .all(|(_, one)| one.used_at + limit <= self.now);
        let is_leaving =
            |one: &Session| matches!(one.release, Release::Chosen | Release::Requested);
        let somebody_leaves = self.sessions.values().any(is_leaving);
        let returns = self.sessions[&id].is_swapped_out();
        self.sessions.change(id, |session| {
            session.is_hopeless = !returns && (is_long || (is_alone && !somebody_leaves));
            if returns && is_long && is_standstill {
                session.lease = Lease::Ending;
                actions.push(Action::End {
                    session: id,
                    reason: EndReason::NoRoom,
                });
            }
        });
    }

    fn others_with_contexts(&self, id: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        let others = self.sessions.iter().filter(move |(other, _)| **other != id);
        let here = others.filter(|(_, one)| one.has_context && one.release == Release::No);
        here.map(|(other, one)| (*other, one))
    }

    /// Forgets an old shortage, so that a session that waits for room can try again.
    pub(crate) fn doubt_shortage(&mut self) {
        if self.doubted_at().is_some_and(|time| time <= self.now) {
            self.shortage.forget();
        }
    }

    /// When the shortage is next doubted: soon, while memory that has just left may not have reached the driver
    /// yet.
    pub(crate) fn doubted_at(&self) -> Option<Duration> {
        if self.shortage.bytes == 0 {
            return None;
        }
        let left_out = |one: &Session| self.wants_room(one) && !self.could_fit(one);
        let patience = if !self.sessions.values().any(left_out) {
            OLD
        } else if self.shortage.lasted() < self.settings.late {
            self.settings.retry
        } else {
            self.settings.late
        };
        Some(self.shortage.found_at? + patience)
    }
}
