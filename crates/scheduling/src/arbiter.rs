//! The arbiter of one GPU: which session computes on it, for how long, and whose memory stays on it.
//!
//! In: what happens in the sessions ([`Event`]) and when. Out: orders to the sessions ([`Action`]), and when to
//! call again ([`Arbiter::wake_at`]).
//!
//! A *lease* is the right to submit work, for a quantum at a time; *residency* is having memory on the GPU. A
//! lease needs residency, but residency needs no lease. So a hand-over between two sessions that both fit moves
//! no bytes.
//!
//! Leases follow multi-level feedback on the GPU time that a cell has used: a short cell never waits for long
//! ones, even if those started first. Within a level, the person with the least recent use comes first. Cells
//! of the lowest level have a guaranteed share, so no cell waits for ever.
//!
//! **Invariant:** pure; no I/O, no clock, no randomness. All times are since one common start, in [`Duration`]s.

mod accounts;
mod ahead;
mod deadlock;
mod guaranteed;
mod host;
mod leases;
mod machine;
mod memory;
mod needs;
mod release;
mod session;
mod sessions;
mod settings;
mod shortage;
mod state;

use std::time::Duration;

pub use machine::Arbiter;
pub use settings::{Memory, Settings};

/// A session, by a number that is never used again.
pub type SessionId = u64;

/// A person. All sessions of one person share an account.
pub type UserId = u64;

/// The number of a lease of this GPU. An answer with the number of an older lease is ignored.
pub type Epoch = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A session began. `fixed_bytes` stay on the GPU while the session lives: its context, and memory that
    /// cannot be swapped.
    Joined {
        session: SessionId,
        user: UserId,
        fixed_bytes: u64,
    },
    /// A cell is on its way to the session.
    Expected(SessionId),
    CellStarted(SessionId),
    /// The cell was asked to stop. It can react only when it has the GPU, so it comes before longer cells.
    CellStopped(SessionId),
    /// The cell may still have work in flight; the lease comes back with [`Event::Yielded`].
    CellEnded(SessionId),
    /// The session tries to submit work and has no lease.
    Wanted(SessionId),
    /// The session gave up its lease, on request or by itself: it submits nothing more, and nothing is in
    /// flight.
    Yielded {
        session: SessionId,
        epoch: Epoch,
    },
    /// The session allocates memory, and waits for [`Action::Grow`] or [`Action::Refuse`].
    Grew {
        session: SessionId,
        bytes: u64,
    },
    /// The session freed memory. Of these bytes, `swapped_out_bytes` were on the host.
    Shrank {
        session: SessionId,
        bytes: u64,
        swapped_out_bytes: u64,
    },
    /// Part of a swap-out is done; the driver has these bytes back.
    PartLeft {
        session: SessionId,
        bytes: u64,
    },
    /// The swap-out is complete.
    SwappedOut(SessionId),
    SwappedIn(SessionId),
    /// The swap-in failed; the memory is still on the host.
    NotSwappedIn(SessionId),
    /// The swap-in of `bytes` failed because the driver has only `free_bytes` left: contexts and other programs
    /// take memory too. The memory is still on the host.
    NoRoom {
        session: SessionId,
        bytes: u64,
        free_bytes: u64,
    },
    /// The same for a granted allocation, which is given back with this event. Of its bytes, `swapped_out_bytes`
    /// counted as on the host.
    NotGrown {
        session: SessionId,
        bytes: u64,
        swapped_out_bytes: u64,
        free_bytes: u64,
    },
    /// The session can free memory that its libraries hold without using it.
    CanTrim(SessionId),
    /// The session has done so, as [`Action::Trim`] asked.
    Trimmed(SessionId),
    /// The session's context has left the GPU too, until the next cell.
    Vacated(SessionId),
    /// The session has made places for this many bytes. Answers each [`Action::Pin`] exactly once.
    Pinned {
        session: SessionId,
        bytes: u64,
    },
    /// How much more host memory all sessions could use, beyond the places that they have there.
    HostHas {
        bytes: u64,
    },
    /// How much more host memory this session could use within its own limits, beyond the places that it has there.
    SessionHas {
        session: SessionId,
        bytes: u64,
    },
    /// The session's process ended.
    Left(SessionId),
    /// The time that [`Arbiter::wake_at`] returned has come.
    Woke,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Grant {
        session: SessionId,
        epoch: Epoch,
    },
    /// Submit nothing more, and answer [`Event::Yielded`] when nothing is in flight. A session that has not
    /// answered by `deadline` is ended.
    Preempt {
        session: SessionId,
        epoch: Epoch,
        deadline: Duration,
    },
    /// Move at least this many bytes off the GPU.
    SwapOut {
        session: SessionId,
        bytes: u64,
    },
    /// Move all memory that is on the host back to the GPU.
    SwapIn(SessionId),
    /// Make places on the host for at most this many bytes that are on the GPU, ahead of a move. Answer
    /// [`Event::Pinned`] when done. A move takes precedence.
    Pin {
        session: SessionId,
        bytes: u64,
    },
    /// Other sessions need room on the host: stop pinning ahead, and give up empty places. Together with the
    /// bytes that were still to be pinned, at least this many bytes are given up, or all. There is no answer;
    /// the arbiter counts them as given up at once.
    Unpin {
        session: SessionId,
        bytes: u64,
    },
    /// Other sessions need room: free the memory that libraries hold without using it, so that it need not be
    /// moved.
    Trim(SessionId),
    /// The allocation succeeds: on the GPU or, if the session is not resident, on paper until the next swap-in.
    Grow {
        session: SessionId,
        bytes: u64,
    },
    /// The allocation fails: out of memory.
    Refuse {
        session: SessionId,
        bytes: u64,
    },
    /// End the session's process.
    End {
        session: SessionId,
        reason: EndReason,
    },
    /// The session has no cell and no memory on the GPU, and other sessions need the room that its context
    /// takes. Unless the session gets a cell first, its context must leave the GPU, or the session must end.
    Release(SessionId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// It kept the GPU beyond the deadline, or did not move its memory.
    Kept,
    /// Its memory no longer fits on the GPU, and no other session can make room.
    NoRoom,
    /// No session can make room, because the host has no room for memory that would leave the GPU.
    NoHostRoom,
}
