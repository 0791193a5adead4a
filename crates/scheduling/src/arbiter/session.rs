//! What the arbiter knows of one session.

use std::time::Duration;

use crate::arbiter::{Epoch, Settings, accounts::Account};

#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) account: Account,
    pub(crate) activity: Activity,
    pub(crate) lease: Lease,
    /// GPU time that its cell has had.
    pub(crate) attained: Duration,
    /// When it last had something to do with the GPU.
    pub(crate) used_at: Duration,
    pub(crate) residency: Residency,
    /// It was moved in and has not computed since.
    pub(crate) fresh: bool,
    /// How long the last move in took, with the moves out that made room for it.
    pub(crate) swap_time: Duration,
    /// Not to be moved in before.
    pub(crate) retry_at: Duration,
    /// It computed, or had memory; so it has a context on the GPU, which is in no ledger.
    pub(crate) has_context: bool,
    pub(crate) release: Release,
    pub(crate) trim: Trim,
    /// For what it needs there was no room, and nobody could make some.
    pub(crate) is_hopeless: bool,
    pub(crate) fixed_bytes: u64,
    pub(crate) bytes: u64,
    /// Of those, on the host.
    pub(crate) swapped_out_bytes: u64,
    /// Of those, allocated while the rest was there. Nothing is in it, so it needs no place on the host.
    pub(crate) on_paper_bytes: u64,
    /// The most that was on the host: memory that has come back keeps its place there.
    pub(crate) host_bytes: u64,
    pub(crate) ahead: Ahead,
    /// Asked for and neither made nor refused.
    pub(crate) growing_bytes: u64,
}

/// Places on the host that were made ahead of a move, beside those that memory had before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ahead {
    pub(crate) bytes: u64,
    pub(crate) asked: Option<Asked>,
    /// Not to be asked before, after a pause that is longer each time.
    pub(crate) retry_at: Duration,
    pub(crate) pause: Duration,
    /// How much more the session's own limits leave to it, where that was said.
    pub(crate) own_room: Option<u64>,
}

/// Places that are being made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) since: Duration,
    /// 0 once they are given up; the answer is still to come.
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
        /// Of its cell when it was granted.
        level: usize,
        /// By the share of the lowest level.
        guaranteed: bool,
    },
    Draining {
        epoch: Epoch,
        deadline: Duration,
        /// It submitted meanwhile.
        wants: bool,
    },
    /// Told to end; its work may still be on the GPU.
    Ending,
}

/// Whether it is to leave the GPU, context and all. A cell ends that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    No,
    /// Its memory leaves first.
    Chosen,
    Requested,
    /// Its context is off the GPU.
    Gone,
}

/// What its libraries hold without using it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trim {
    Cannot,
    Can,
    Asked {
        since: Duration,
    },
    /// Since its last cell.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Residency {
    /// All of its memory is on the GPU.
    Resident,
    /// So many bytes are on their way to the host.
    Leaving {
        since: Duration,
        bytes: u64,
    },
    /// A part of its memory is on the host, or all of it.
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

    /// Since when its memory is on its way.
    pub(crate) fn moves_since(&self) -> Option<Duration> {
        match self.residency {
            Residency::Leaving { since, .. } | Residency::Coming { since } => Some(since),
            Residency::Resident | Residency::SwappedOut => None,
        }
    }

    /// Who leaves the GPU waits for its next cell first.
    pub(crate) fn waits(&self) -> bool {
        let leaves = matches!(self.release, Release::Requested | Release::Gone);
        !leaves && matches!(self.lease, Lease::Waiting { .. })
    }

    /// It has no cell, and nothing to do on the GPU.
    pub(crate) fn is_idle(&self) -> bool {
        self.activity != Activity::Running && self.lease == Lease::Idle
    }

    pub(crate) fn holds(&self) -> bool {
        matches!(self.lease, Lease::Holding { .. })
    }

    /// Its work may be on the GPU.
    pub(crate) fn computes(&self) -> bool {
        !matches!(self.lease, Lease::Idle | Lease::Waiting { .. })
    }

    /// Not to be moved in before, where it is away and has nothing on the GPU.
    pub(crate) fn retries_at(&self) -> Option<Duration> {
        (self.is_swapped_out() && !self.computes()).then_some(self.retry_at)
    }

    pub(crate) fn waits_since(&self) -> Duration {
        match self.lease {
            Lease::Waiting { since } => since,
            _ => self.used_at,
        }
    }

    /// With what is on its way there.
    pub(crate) fn bytes_on_gpu(&self) -> u64 {
        let swapped_out = if self.is_coming() {
            0
        } else {
            self.swapped_out_bytes
        };
        self.fixed_bytes + self.bytes - swapped_out
    }

    /// On the GPU, and could leave it.
    pub(crate) fn bytes_there(&self) -> u64 {
        self.bytes - self.swapped_out_bytes
    }

    /// Its work is not on the GPU, and its memory does not move.
    pub(crate) fn rests(&self) -> bool {
        !self.computes() && self.moves_since().is_none()
    }

    /// Not on the GPU, or about to leave it.
    pub(crate) fn bytes_to_return(&self) -> u64 {
        self.swapped_out_bytes + self.bytes_leaving()
    }

    /// On the host, or on the way there.
    pub(crate) fn filled_bytes(&self) -> u64 {
        self.bytes_to_return() - self.on_paper_bytes
    }

    /// On the host, and empty: left by its memory that is on the GPU.
    pub(crate) fn free_pinned_bytes(&self) -> u64 {
        self.host_bytes.saturating_sub(self.filled_bytes())
    }

    /// All its places on the host, with those that are being made.
    pub(crate) fn places_bytes(&self) -> u64 {
        self.filled_bytes()
            .max(self.host_bytes + self.ahead_bytes())
    }

    /// Of those, made ahead.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let asked = self.ahead.asked.map_or(0, |asked| asked.bytes);
        self.ahead.bytes + asked
    }

    /// It takes part in who has the GPU, or has memory of its own there.
    pub(crate) fn is_rival(&self) -> bool {
        self.bytes + self.growing_bytes > 0 || self.activity == Activity::Running || self.waits()
    }

    pub(crate) fn bytes_leaving(&self) -> u64 {
        match self.residency {
            Residency::Leaving { bytes, .. } => bytes,
            _ => 0,
        }
    }
}

/// What its events change.
impl Session {
    pub(crate) fn expect_cell(&mut self) {
        self.activity = Activity::Running;
        self.has_context |= self.release == Release::Gone;
        self.release = Release::No;
        if self.trim == Trim::Done {
            self.trim = Trim::Can;
        }
    }

    /// Its memory is not moved before, because some of it may be freed by then.
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

    /// On the GPU, or on the host while a part of it is there.
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.is_swapped_out() {
            self.swapped_out_bytes += bytes;
            self.on_paper_bytes += bytes;
        }
    }

    pub(crate) fn shrink(&mut self, bytes: u64, swapped_out_bytes: u64) {
        // What is not on the GPU was on the host, whatever is said.
        let swapped_out_bytes = swapped_out_bytes.max(bytes.saturating_sub(self.bytes_there()));
        let swapped_out_bytes = swapped_out_bytes.min(bytes);
        self.swapped_out_bytes = self.swapped_out_bytes.saturating_sub(swapped_out_bytes);
        // Which of it was freed is not said; so the host may have less of it than is counted, never more.
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

    /// How long it took.
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
        if let Some(room) = &mut self.ahead.own_room {
            *room = room.saturating_sub(bytes);
        }
    }

    /// What was given up meanwhile does not count, nor does more than was asked for. Where whole parts are missing it is
    /// asked again after a pause, unless a move cut it short: memory that was granted just now may not be there yet, or
    /// no more can be pinned.
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

    /// Up to so many bytes, what is being made before what there is. How many.
    pub(crate) fn give_back_ahead(&mut self, bytes: u64) -> u64 {
        let asked = match &mut self.ahead.asked {
            Some(asked) => std::mem::take(&mut asked.bytes),
            None => 0,
        };
        let given = bytes.saturating_sub(asked).min(self.ahead.bytes);
        self.ahead.bytes -= given;
        asked + given
    }

    /// No memory has two places.
    fn cap_ahead(&mut self) {
        let most = self.bytes.saturating_sub(self.host_bytes);
        self.ahead.bytes = self.ahead.bytes.min(most);
    }

    pub(crate) fn stay_away(&mut self, retry_at: Duration) {
        self.residency = Residency::SwappedOut;
        self.retry_at = retry_at;
    }

    /// It has a context on the GPU no more. A cell that came meanwhile has it back already.
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
