//! The arbiter of one GPU: which session computes on it, for how long, and whose memory stays on it.
//!
//! In: what happens in the sessions ([`Event`]) and when. Out: orders for them ([`Action`]), and when to call again
//! ([`Arbiter::wake_at`]).
//!
//! A *lease* is the right to submit work, for a quantum at a time; *residency* is having memory on the GPU. A lease
//! needs residency, residency needs no lease. So a hand-over between sessions that both fit moves no bytes.
//!
//! Leases follow multi-level feedback on the GPU time that a cell has had: a short cell never waits for long
//! ones, even if those started first. Inside a level the order is by each person's recent use. Cells of the lowest level
//! have a guaranteed share, so no cell waits for ever.
//!
//! **Invariant:** pure; no I/O, no clock, no randomness. All times are since one common start, in [`Duration`]s.

mod accounts;
mod ahead;
mod host;
mod leases;
mod machine;
mod memory;
mod session;
mod sessions;
mod settings;
mod shortage;

use std::time::Duration;

pub use machine::Arbiter;
pub use settings::{Memory, Settings};

/// A session, by a number that is never used again.
pub type SessionId = u64;

/// A person; all sessions of one share an account.
pub type UserId = u64;

/// Numbers the leases of a GPU. An answer with the number of an older lease is ignored.
pub type Epoch = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A session began. `fixed_bytes` never leave the GPU while it lives: its context, and what cannot be swapped.
    Joined {
        session: SessionId,
        user: UserId,
        fixed_bytes: u64,
    },
    /// A cell is on its way to it.
    Expected(SessionId),
    CellStarted(SessionId),
    /// Also when the cell has work in flight; the lease comes back with [`Event::Yielded`].
    CellEnded(SessionId),
    /// It submits, and has no lease.
    Wanted(SessionId),
    /// It submits nothing more and nothing is in flight: as told, or on its own accord.
    Yielded {
        session: SessionId,
        epoch: Epoch,
    },
    /// It allocates, and waits for [`Action::Grow`] or [`Action::Refuse`].
    Grew {
        session: SessionId,
        bytes: u64,
    },
    /// It freed. Of these bytes `swapped_out_bytes` were on the host.
    Shrank {
        session: SessionId,
        bytes: u64,
        swapped_out_bytes: u64,
    },
    /// A part of what is to leave has left; the driver has these bytes back.
    PartLeft {
        session: SessionId,
        bytes: u64,
    },
    /// All has left that was to leave.
    SwappedOut(SessionId),
    SwappedIn(SessionId),
    /// Its memory did not come.
    NotSwappedIn(SessionId),
    /// What was granted, or what should come back, found no room: the driver has no more than `free_bytes`, because
    /// contexts and programs of others have memory, too.
    Full {
        session: SessionId,
        needed_bytes: u64,
        free_bytes: u64,
    },
    /// It can give back what its libraries hold without using it.
    CanTrim(SessionId),
    /// It was asked to, and has.
    Trimmed(SessionId),
    /// Its context is off the GPU, too, until its next cell.
    Vacated(SessionId),
    /// Of the bytes that it was to make places for, so many have one. Answers each [`Action::Pin`], once.
    Pinned {
        session: SessionId,
        bytes: u64,
    },
    /// How much more of the host's memory sessions could have, beside the places that their memory has there.
    HostHas {
        bytes: u64,
    },
    /// How much more of the host's memory its own limits leave to this session.
    SessionHas {
        session: SessionId,
        bytes: u64,
    },
    /// Its process ended.
    Left(SessionId),
    /// The time of [`Arbiter::wake_at`] has come.
    Woke,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Grant {
        session: SessionId,
        epoch: Epoch,
    },
    /// Submit nothing more; [`Event::Yielded`] when nothing is in flight. Who has not by `deadline` is ended.
    Preempt {
        session: SessionId,
        epoch: Epoch,
        deadline: Duration,
    },
    /// At least so many bytes are to leave the GPU.
    SwapOut {
        session: SessionId,
        bytes: u64,
    },
    /// All that is on the host is to come back.
    SwapIn(SessionId),
    /// Places on the host for so many bytes that are on the GPU, and no more, are made ahead of a move.
    /// [`Event::Pinned`] says when that is over. A move comes first.
    Pin {
        session: SessionId,
        bytes: u64,
    },
    /// Others lack room on the host: nothing more is pinned ahead, and empty places there are given up, at least so many
    /// bytes with those that were still to be pinned, or all. Nothing answers; from now on they count as given up.
    Unpin {
        session: SessionId,
        bytes: u64,
    },
    /// Others lack room: what its libraries hold without using it should be freed, before it would be moved.
    Trim(SessionId),
    /// The allocation is made, on the GPU or, for who is not resident, on paper until the next swap-in.
    Grow {
        session: SessionId,
        bytes: u64,
    },
    /// The allocation fails: out of memory.
    Refuse {
        session: SessionId,
        bytes: u64,
    },
    /// Its process is to end.
    End {
        session: SessionId,
        reason: EndReason,
    },
    /// It has no cell and no memory on the GPU, and others lack what its context takes: that should leave the GPU too, or
    /// the session end, unless it gets a cell first.
    Release(SessionId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// It kept the GPU beyond the deadline, or does not move its memory.
    Kept,
    /// Its memory does not fit on the GPU any more, and nobody can make room.
    NoRoom,
    /// Nobody can make room, because the host has none for what would leave the GPU.
    NoHostRoom,
}
