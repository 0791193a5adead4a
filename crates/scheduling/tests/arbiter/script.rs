//! What sessions should do, and what was observed.

use baton_scheduling::arbiter::{Epoch, SessionId};
use std::{collections::BTreeMap, time::Duration};

pub(crate) const GB: u64 = 1_000_000_000;

/// One cell: how long its student edits before it, how long it computes, and how much memory it adds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) edit: Duration,
    pub(crate) compute: Duration,
    pub(crate) grow: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    pub(crate) user: u64,
    pub(crate) cells: Vec<Cell>,
    /// Ignores requests to give up its lease.
    pub(crate) is_deaf: bool,
    /// Ignores requests to move its memory.
    pub(crate) is_stuck: bool,
    /// Memory that its libraries keep unused after each cell; they free it on request.
    pub(crate) held: u64,
    /// Its context leaves the GPU on request; otherwise its process ends.
    pub(crate) can_sleep: bool,
    /// How long it takes to leave the GPU on request.
    pub(crate) leaves_in: Duration,
    /// How much host memory it may use by its own limits.
    pub(crate) host_limit: Option<u64>,
    /// Its process ends at this time.
    pub(crate) dies_at: Option<Duration>,
}

/// What was observed.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) ended: Vec<SessionId>,
    pub(crate) refused: Vec<SessionId>,
    /// Sessions that had to leave the GPU because of their context.
    pub(crate) released: Vec<SessionId>,
    /// Session, cell, and time from submission to end.
    pub(crate) responses: Vec<(SessionId, usize, Duration)>,
    pub(crate) moved_bytes: u64,
    /// Places on the host that were made ahead of moves, and in them.
    pub(crate) pinned_ahead: u64,
    pub(crate) pinned_in_moves: u64,
    pub(crate) most_together: usize,
    pub(crate) computed: BTreeMap<SessionId, Duration>,
    pub(crate) hand_overs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    CellBegins(SessionId),
    CellDone(SessionId, u64),
    Rests(SessionId, Epoch),
    /// The bytes moved, and whether these were the last.
    MovedOut(SessionId, u64, bool),
    MovedIn(SessionId),
    Wants(SessionId),
    Fails(SessionId),
    /// The session asks for this much again.
    Asks(SessionId, u64),
    /// The session needs this much, and only this much is free.
    FindsFull(SessionId, u64, u64),
    Dies(SessionId),
    Sleeps(SessionId),
    Trims(SessionId),
    HostHas(u64),
    SessionHas(SessionId, u64),
    /// The places of this number.
    PlacesMade(SessionId, u64),
    SaysPinned(SessionId, u64),
    Wakes,
}
