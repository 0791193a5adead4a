//! What the arbiter knows of one session.

use crate::arbiter::{Epoch, Settings, accounts::Account};
use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) account: Account,
    pub(crate) activity: Activity,
    pub(crate) lease: Lease,
    /// GPU time that its cell has used.
    pub(crate) attained: Duration,
    /// When it last used the GPU.
    pub(crate) used_at: Duration,
    pub(crate) residency: Residency,
    /// It was swapped in and has not computed since.
    pub(crate) fresh: bool,
    /// How long the last swap-in took, including the swap-outs that made room for it.
    pub(crate) swap_time: Duration,
    /// The earliest time of the next swap-in.
    pub(crate) retry_at: Duration,
    /// It has computed or had memory, so it has a context on the GPU, which is in no ledger.
    pub(crate) has_context: bool,
    pub(crate) release: Release,
    pub(crate) trim: Trim,
    /// There was no room for what it needs, and no other session could make room.
    pub(crate) is_hopeless: bool,
    pub(crate) fixed_bytes: u64,
    pub(crate) bytes: u64,
    /// The part of `bytes` that is on the host.
    pub(crate) swapped_out_bytes: u64,
    /// The part of `swapped_out_bytes` that was allocated while the session was swapped out. It has no contents
    /// yet, so it needs no place on the host.
    pub(crate) on_paper_bytes: u64,
    /// The most that was ever on the host: memory that has come back keeps its place there.
    pub(crate) host_bytes: u64,
    /// How much host memory all its places may take by its own limits, if known.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) ahead: Ahead,
    /// Requested allocations that are neither granted nor refused.
    pub(crate) growing_bytes: u64,
}

/// Places on the host that were made ahead of a move, in addition to those that earlier moves left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ahead {
    pub(crate) bytes: u64,
    pub(crate) asked: Option<Asked>,
    /// The earliest time of the next request.
    pub(crate) retry_at: Duration,
    pub(crate) pause: Duration,
}

/// Places that are being made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) since: Duration,
    /// 0 once the places are given up; the answer is still to come.
    pub(crate) bytes: u64,
}

/// In the order in which sessions are moved out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Activity {
    Editing,
    Running,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    Idle,
    Waiting {
        since: Duration,
    },
    Holding {
        epoch: Epoch,
        since: Duration,
        /// The level of its cell when the lease was granted.
        level: usize,
        /// Granted by the guaranteed share of the lowest level.
        guaranteed: bool,
    },
    Draining {
        epoch: Epoch,
        deadline: Duration,
        /// It has tried to submit since.
        wants: bool,
    },
    /// It was told to end; its work may still be on the GPU.
    Ending,
}

/// Whether the session must leave the GPU completely, with its context. A new cell cancels that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    No,
    /// It is to leave; its memory moves out first.
    Chosen,
    Requested,
    /// Its context has left the GPU.
    Gone,
}

/// Whether the session can free memory that its libraries hold without using it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trim {
    Cannot,
    Can,
    Asked {
        since: Duration,
    },
    /// It has done so since its last cell.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Residency {
    /// All of its memory is on the GPU.
    Resident,
    /// `bytes` are on their way to the host.
    Leaving {
        since: Duration,
        bytes: u64,
    },
    /// Part or all of its memory is on the host.
    SwappedOut,
    Coming {
        since: Duration,
    },
}

impl Session {
    pub(crate) fn new(account: Account, fixed_bytes: u64, now: Duration) -> Self {
        Self {
            account,
            activity: Activity::Editing,
            lease: Lease::Idle,
            attained: Duration::ZERO,
            used_at: now,
            residency: Residency::Resident,
            fresh: false,
            swap_time: Duration::ZERO,
            retry_at: Duration::ZERO,
            has_context: false,
            release: Release::No,
            trim: Trim::Cannot,
            is_hopeless: false,
            fixed_bytes,
            bytes: 0,
            swapped_out_bytes: 0,
            on_paper_bytes: 0,
            host_bytes: 0,
            limit_bytes: None,
            ahead: Ahead::default(),
            growing_bytes: 0,
        }
    }

    pub(crate) fn is_resident(&self) -> bool {
        self.residency == Residency::Resident
    }

    pub(crate) fn is_swapped_out(&self) -> bool {
        self.residency == Residency::SwappedOut
    }

    pub(crate) fn is_coming(&self) -> bool {
        matches!(self.residency, Residency::Coming { .. })
    }

    /// Since when its memory has been moving.
    pub(crate) fn moves_since(&self) -> Option<Duration> {
        match self.residency {
            Residency::Leaving { since, .. } | Residency::Coming { since } => Some(since),
            Residency::Resident | Residency::SwappedOut => None,
        }
    }

    /// A session that leaves the GPU does not wait for a lease until its next cell.
    pub(crate) fn waits(&self) -> bool {
        let leaves = matches!(self.release, Release::Requested | Release::Gone);
        !leaves && matches!(self.lease, Lease::Waiting { .. })
    }

    /// It has no cell and no work on the GPU.
    pub(crate) fn is_idle(&self) -> bool {
        self.activity != Activity::Running && self.lease == Lease::Idle
    }

    pub(crate) fn holds(&self) -> bool {
        matches!(self.lease, Lease::Holding { .. })
    }

    /// Whether its work may be on the GPU.
    pub(crate) fn computes(&self) -> bool {
        !matches!(self.lease, Lease::Idle | Lease::Waiting { .. })
    }

    /// The earliest time of the next swap-in, if it is swapped out and has no work on the GPU.
    pub(crate) fn retries_at(&self) -> Option<Duration> {
        (self.is_swapped_out() && !self.computes()).then_some(self.retry_at)
    }

    pub(crate) fn waits_since(&self) -> Duration {
        match self.lease {
            Lease::Waiting { since } => since,
            _ => self.used_at,
        }
    }

    /// Includes the memory that is on its way to the GPU.
    pub(crate) fn bytes_on_gpu(&self) -> u64 {
        let swapped_out = if self.is_coming() {
            0
        } else {
            self.swapped_out_bytes
        };
        self.fixed_bytes + self.bytes - swapped_out
    }

    /// Memory on the GPU that could leave it.
    pub(crate) fn bytes_there(&self) -> u64 {
        self.bytes - self.swapped_out_bytes
    }

    /// Whether it has no work on the GPU and its memory does not move.
    pub(crate) fn rests(&self) -> bool {
        !self.computes() && self.moves_since().is_none()
    }

    /// Whether memory of it can move out now.
    pub(crate) fn may_leave(&self) -> bool {
        self.rests() && self.bytes_there() > 0
    }

    /// The room on the GPU that it needs to return, or for its requested allocations.
    pub(crate) fn bytes_needed(&self) -> u64 {
        if self.is_swapped_out() {
            self.swapped_out_bytes
        } else {
            self.growing_bytes
        }
    }

    /// Memory that is not on the GPU, or is about to leave it.
    pub(crate) fn bytes_to_return(&self) -> u64 {
        self.swapped_out_bytes + self.bytes_leaving()
    }

    /// Places on the host that are filled, or are being filled.
    pub(crate) fn filled_bytes(&self) -> u64 {
        self.bytes_to_return() - self.on_paper_bytes
    }

    /// Empty places on the host, kept by memory that has returned to the GPU.
    pub(crate) fn free_pinned_bytes(&self) -> u64 {
        self.host_bytes.saturating_sub(self.filled_bytes())
    }

    /// All its places on the host, including those that are being made.
    pub(crate) fn places_bytes(&self) -> u64 {
        self.filled_bytes()
            .max(self.host_bytes + self.ahead_bytes())
    }

    /// Its places that were made ahead, including those that are being made.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let asked = self.ahead.asked.map_or(0, |asked| asked.bytes);
        self.ahead.bytes + asked
    }

    /// How much more host memory its places may take by its own limits.
    pub(crate) fn room_in_limits(&self) -> u64 {
        self.within_limits(self.host_bytes + self.ahead_bytes())
    }

    /// How much of its memory on the GPU has room on the host by its own limits.
    pub(crate) fn can_leave_within_limits(&self) -> u64 {
        self.within_limits(self.filled_bytes())
    }

    fn within_limits(&self, taken_bytes: u64) -> u64 {
        let limit = self.limit_bytes.unwrap_or(u64::MAX);
        limit.saturating_sub(taken_bytes)
    }

    /// Whether it competes for the GPU: it has memory, a cell, or waits for a lease.
    pub(crate) fn is_rival(&self) -> bool {
        self.bytes + self.growing_bytes > 0 || self.activity == Activity::Running || self.waits()
    }

    /// The session is ended at this time unless it has drained and its memory has moved.
    pub(crate) fn deadline(&self, settings: &Settings) -> Option<Duration> {
        match self.lease {
            Lease::Ending => None,
            Lease::Draining { deadline, .. } => Some(deadline),
            Lease::Idle | Lease::Waiting { .. } | Lease::Holding { .. } => {
                let move_time = Duration::from_secs(self.bytes / settings.slowest_move);
                Some(self.moves_since()? + settings.drain_limit + move_time)
            }
        }
    }

    pub(crate) fn bytes_leaving(&self) -> u64 {
        match self.residency {
            Residency::Leaving { bytes, .. } => bytes,
            _ => 0,
        }
    }
}

/// How events change the session.
impl Session {
    pub(crate) fn expect_cell(&mut self) {
        self.activity = Activity::Running;
        self.has_context |= self.release == Release::Gone;
        self.release = Release::No;
        if self.trim == Trim::Done {
            self.trim = Trim::Can;
        }
    }

    pub(crate) fn begin_cell(&mut self) {
        self.expect_cell();
        self.attained = Duration::ZERO;
    }

    /// From now on, its cell counts as a new one in the order.
    pub(crate) fn stop_cell(&mut self) {
        self.attained = Duration::ZERO;
    }

    /// Its memory is not moved before this time, because the session may free some of it until then.
    pub(crate) fn trims_until(&self, limit: Duration) -> Option<Duration> {
        match self.trim {
            Trim::Asked { since } if self.is_idle() => Some(since + limit),
            _ => None,
        }
    }

    pub(crate) fn want(&mut self, now: Duration) {
        self.has_context = true;
        match &mut self.lease {
            Lease::Idle => self.lease = Lease::Waiting { since: now },
            Lease::Draining { wants, .. } => *wants = true,
            Lease::Waiting { .. } | Lease::Holding { .. } | Lease::Ending => {}
        }
    }

    pub(crate) fn give_back(&mut self, returned: Epoch, now: Duration) {
        let wants = match self.lease {
            Lease::Holding { epoch, .. } if epoch == returned => false,
            Lease::Draining { epoch, wants, .. } if epoch == returned => wants,
            _ => return,
        };
        self.swap_time = Duration::ZERO;
        self.used_at = now;
        self.lease = if wants {
            Lease::Waiting { since: now }
        } else {
            Lease::Idle
        };
    }

    pub(crate) fn end_cell(&mut self) {
        self.activity = Activity::Editing;
        self.fresh = false;
        match &mut self.lease {
            Lease::Waiting { .. } => self.lease = Lease::Idle,
            Lease::Draining { wants, .. } => *wants = false,
            Lease::Idle | Lease::Holding { .. } | Lease::Ending => {}
        }
    }

    /// The new memory counts as swapped out if part of the session's memory is on the host.
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.is_swapped_out() {
            self.swapped_out_bytes += bytes;
            self.on_paper_bytes += bytes;
        }
    }

    pub(crate) fn shrink(&mut self, bytes: u64, swapped_out_bytes: u64) {
        // Memory that was not on the GPU was on the host, whatever the session reports.
        let swapped_out_bytes = swapped_out_bytes.max(bytes.saturating_sub(self.bytes_there()));
        let swapped_out_bytes = swapped_out_bytes.min(bytes);
        self.swapped_out_bytes = self.swapped_out_bytes.saturating_sub(swapped_out_bytes);
        // The session does not report which part was freed. So the host may hold less than is counted, never
        // more.
        self.on_paper_bytes = self.on_paper_bytes.saturating_sub(swapped_out_bytes);
        self.bytes = self.bytes.saturating_sub(bytes).max(self.swapped_out_bytes);
        self.host_bytes = self.host_bytes.min(self.bytes);
        self.cap_ahead();
        let there = self.bytes_there();
        if let Residency::Leaving { bytes, .. } = &mut self.residency {
            *bytes = there.min(*bytes);
        }
    }

    pub(crate) fn begin_to_leave(&mut self, bytes: u64, since: Duration) {
        let bytes = bytes.min(self.bytes_there());
        self.residency = Residency::Leaving { since, bytes };
        self.fresh = false;
    }

    pub(crate) fn leave_in_part(&mut self, part: u64) {
        let part = part.min(self.bytes_there());
        if let Residency::Leaving { bytes, .. } = &mut self.residency {
            *bytes = bytes.saturating_sub(part);
            self.put_away(part);
        }
    }

    /// Ends the swap-out, and returns how long it took.
    pub(crate) fn leave(&mut self, now: Duration) -> Duration {
        let Residency::Leaving { since, bytes } = self.residency else {
            return Duration::ZERO;
        };
        self.put_away(bytes);
        self.residency = Residency::SwappedOut;
        now - since
    }

    fn put_away(&mut self, bytes: u64) {
        self.swapped_out_bytes += bytes;
        let filled = self.swapped_out_bytes - self.on_paper_bytes;
        let taken = filled.saturating_sub(self.host_bytes);
        self.host_bytes += taken;
        self.ahead.bytes = self.ahead.bytes.saturating_sub(taken);
    }

    pub(crate) fn unpin(&mut self) {
        self.host_bytes = self.filled_bytes();
        self.give_back_ahead(u64::MAX);
    }

    pub(crate) fn begin_to_pin(&mut self, bytes: u64, since: Duration) {
        self.ahead.asked = Some(Asked { since, bytes });
    }

    /// Its own limits allow this much more host memory. Places that are still being made count as not made.
    pub(crate) fn limit(&mut self, bytes: u64) {
        let places = self.host_bytes + self.ahead.bytes;
        self.limit_bytes = Some(places.saturating_add(bytes));
    }

    /// Takes in how many bytes were pinned, without those that were given up meanwhile and those beyond the
    /// request. If whole parts are missing and no move interrupted the pinning, the next request follows after
    /// a pause: memory that was granted recently may not be allocated yet, or no more can be pinned.
    pub(crate) fn pin(&mut self, bytes: u64, now: Duration, settings: &Settings) {
        let Some(asked) = self.ahead.asked.take() else {
            return;
        };
        let pinned = bytes.min(asked.bytes);
        self.ahead.bytes += pinned;
        self.cap_ahead();
        let missing = asked.bytes - pinned;
        let lacks_parts = missing > 0 && (pinned == 0 || missing >= settings.part_bytes);
        let pause = match lacks_parts && self.moves_since().is_none() {
            true => (self.ahead.pause * 2).clamp(settings.retry, settings.pin_retry),
            false => Duration::ZERO,
        };
        self.ahead.pause = pause;
        self.ahead.retry_at = now + pause;
    }

    /// Gives up to `bytes` of the places that were made ahead. All that are being made are given up first.
    /// Returns how many bytes were given up.
    pub(crate) fn give_back_ahead(&mut self, bytes: u64) -> u64 {
        let asked = match &mut self.ahead.asked {
            Some(asked) => std::mem::take(&mut asked.bytes),
            None => 0,
        };
        let given = bytes.saturating_sub(asked).min(self.ahead.bytes);
        self.ahead.bytes -= given;
        asked + given
    }

    /// Keeps the count such that no memory has two places.
    fn cap_ahead(&mut self) {
        let most = self.bytes.saturating_sub(self.host_bytes);
        self.ahead.bytes = self.ahead.bytes.min(most);
    }

    pub(crate) fn stay_away(&mut self, retry_at: Duration) {
        self.residency = Residency::SwappedOut;
        self.retry_at = retry_at;
    }

    /// Its context has left the GPU. If a cell arrived meanwhile, the session already has a context again.
    pub(crate) fn vacate(&mut self) {
        if self.release == Release::Requested {
            self.has_context = false;
            self.release = Release::Gone;
        }
    }

    pub(crate) fn arrive(&mut self, now: Duration, made_room: Duration) {
        if let Residency::Coming { since } = self.residency {
            self.residency = Residency::Resident;
            self.swapped_out_bytes = 0;
            self.on_paper_bytes = 0;
            self.fresh = true;
            self.swap_time = now - since + made_room;
        }
    }
}
