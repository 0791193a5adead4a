//! What sessions are to do, and what was seen of it.

use std::{collections::BTreeMap, time::Duration};

use baton_scheduling::arbiter::{Epoch, SessionId};

pub(crate) const GB: u64 = 1_000_000_000;

/// One cell: how long its student edits before, how long it computes, how much more memory it takes.
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
    /// Does not come to rest when it is told to.
    pub(crate) is_deaf: bool,
    /// Does not move its memory when it is told to.
    pub(crate) is_stuck: bool,
    /// What its libraries hold after each cell without using it; they free that when they are told to.
    pub(crate) held: u64,
    /// Its context leaves the GPU when it is told to; else its process ends.
    pub(crate) can_sleep: bool,
    /// Its process ends at this time.
    pub(crate) dies_at: Option<Duration>,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) ended: Vec<SessionId>,
    pub(crate) refused: Vec<SessionId>,
    /// Told to leave the GPU because of its context.
    pub(crate) released: Vec<SessionId>,
    /// Session, cell, from submission to end.
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
    /// So many bytes, and whether these were the last.
    MovedOut(SessionId, u64, bool),
    MovedIn(SessionId),
    Wants(SessionId),
    Fails(SessionId),
    /// It asks again for so much.
    Asks(SessionId, u64),
    /// It needs so much, and so much is free.
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
