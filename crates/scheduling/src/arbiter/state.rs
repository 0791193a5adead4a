//! What the arbiter decides from: the sessions, their order, and the sizes of GPU and host.

use crate::arbiter::{
    Epoch, SessionId, Settings, UserId, accounts::Accounts, guaranteed::GuaranteedShare,
    session::Session, sessions::Sessions, shortage::Shortage,
};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) sessions: Sessions,
    pub(crate) now: Duration,
    pub(crate) shortage: Shortage,
    /// How much host memory sessions may use, if it was reported.
    pub(crate) reported_host_bytes: Option<u64>,
    /// The last lease.
    pub(crate) epoch: Epoch,
    /// The last lease before which places were given up for a test.
    pub(crate) tortured: Epoch,
    accounts: Accounts,
    guaranteed: GuaranteedShare,
}

impl State {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            sessions: Sessions::new(settings.levels),
            settings,
            now: Duration::ZERO,
            shortage: Shortage::default(),
            reported_host_bytes: None,
            epoch: 0,
            tortured: 0,
            accounts: Accounts::default(),
            guaranteed: GuaranteedShare::default(),
        }
    }

    pub(crate) fn join(&mut self, id: SessionId, user: UserId, fixed_bytes: u64) {
        let account = self.accounts.open(user);
        let joined = Session::new(account, fixed_bytes, self.now);
        self.sessions.insert(id, joined);
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        if self.sessions.get(&id).is_some_and(|one| one.has_context) {
            self.shortage.begin_anew(self.now);
        }
        self.sessions.remove(id);
    }

    pub(crate) fn shrink(&mut self, id: SessionId, bytes: u64, swapped_out_bytes: u64) {
        self.sessions
            .change(id, |one| one.shrink(bytes, swapped_out_bytes));
    }

    /// Charges the sessions that computed for the time since the last event.
    pub(crate) fn charge_until(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if elapsed.is_zero() {
            return;
        }
        self.accounts.decay(elapsed, self.settings.half_life);
        self.guaranteed
            .charge(elapsed, &self.sessions, &self.settings);
        let each = elapsed / (self.sessions.count_computing() as u32).max(1);
        let accounts = &mut self.accounts;
        let charged = |account| accounts.charge(account, each);
        self.sessions.charge(each, now, charged);
    }

    // ---- order

    /// The waiting session with the best priority among those that are meant.
    pub(crate) fn front(
        &self,
        is_meant: impl Fn(SessionId, &Session) -> bool,
    ) -> Option<SessionId> {
        let lowest = self.settings.lowest();
        let overdue = self.guaranteed.is_overdue().then_some(lowest);
        let mut levels = overdue.into_iter().chain(0..=lowest);
        levels.find_map(|level| {
            let waiting = self.sessions.waiting(level);
            let meant = waiting.filter(|(id, session)| is_meant(*id, session));
            best(meant.map(|(id, session)| (id, self.priority_at(level, session))))
        })
    }

    pub(crate) fn priority(&self, session: &Session) -> Priority {
        self.priority_at(self.level(session), session)
    }

    fn priority_at(&self, level: usize, session: &Session) -> Priority {
        let is_lowest = level == self.settings.lowest() && !session.computes();
        Priority {
            rank: if is_lowest && self.guaranteed.is_overdue() {
                Rank::Overdue
            } else {
                Rank::Level(level)
            },
            used: self.accounts.used(session.account),
            since: session.waits_since(),
        }
    }

    /// The level of the session's cell; 0 is the highest.
    pub(crate) fn level(&self, session: &Session) -> usize {
        self.settings.level(session.attained)
    }

    /// When the guaranteed share of the lowest level is overdue, if nothing happens before.
    pub(crate) fn guaranteed_overdue_at(&self) -> Option<Duration> {
        let overdue_in = self.guaranteed.overdue_in(&self.sessions, &self.settings)?;
        Some(self.now + overdue_in)
    }

    // ---- memory on the GPU

    /// How much of the GPU's memory all sessions may have together.
    pub(crate) fn usable_bytes(&self) -> u64 {
        let usable = self.settings.memory.usable_bytes;
        usable.saturating_sub(self.shortage.bytes())
    }

    /// Memory that stays on the GPU, whichever session computes.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        self.sessions.values().map(|one| one.fixed_bytes).sum()
    }

    /// The memory of all sessions that can leave the GPU, including requested allocations.
    pub(crate) fn movable_bytes(&self) -> u64 {
        let sessions = self.sessions.values();
        sessions.map(|one| one.bytes + one.growing_bytes).sum()
    }

    /// Bytes of GPU memory in use, including those that are on their way there.
    pub(crate) fn bytes_on_gpu(&self) -> u64 {
        self.sessions.sums().bytes_on_gpu as u64
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.usable_bytes().saturating_sub(self.bytes_on_gpu())
    }

    /// Memory that is free, or will be once the current swap-out ends.
    pub(crate) fn room_with_leaving(&self) -> u64 {
        self.free_bytes() + self.sessions.sums().bytes_leaving as u64
    }

    /// Whether the session lacks room, even if no room can be made.
    pub(crate) fn wants_room(&self, session: &Session) -> bool {
        (session.is_resident() && session.growing_bytes > 0)
            || (session.waits() && session.is_swapped_out() && session.retry_at <= self.now)
    }

    /// Whether the session would fit if all others moved their memory out.
    pub(crate) fn could_fit(&self, session: &Session) -> bool {
        if self.shortage.bytes() == 0 {
            return true;
        }
        self.fixed_bytes() + session.bytes + session.growing_bytes <= self.usable_bytes()
    }

    // ---- memory on the host

    /// How much host memory all sessions together may use.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.reported_host_bytes
            .unwrap_or(self.settings.memory.host_bytes)
    }

    /// The places of all sessions, including those that were made ahead and those that are being made.
    pub(crate) fn places_bytes(&self) -> u64 {
        self.sessions.sums().places_bytes as u64
    }

    // ---- tests of moves

    /// A pseudo-random number that differs for each lease.
    pub(crate) fn random_number(&self, seed: u64) -> u64 {
        let number = (seed ^ self.epoch).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        number ^ (number >> 29)
    }
}

/// Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// At the lowest level, whose guaranteed share is overdue.
    Overdue,
    /// By the GPU time that the cell has used; 0 is the highest level.
    Level(usize),
}

/// Orders sessions: by rank, then by recent use, then by the time waited. Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Priority {
    pub(crate) rank: Rank,
    pub(crate) used: f64,
    pub(crate) since: Duration,
}

pub(crate) fn best(priorities: impl Iterator<Item = (SessionId, Priority)>) -> Option<SessionId> {
    priorities
        .min_by(|(_, left), (_, right)| left.partial_cmp(right).expect("times are numbers"))
        .map(|(id, _)| id)
}
