//! A session as the test world sees it.

use crate::script::Script;
use baton_scheduling::arbiter::Epoch;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) script: Script,
    pub(super) next_cell: usize,
    pub(super) left: Duration,
    pub(super) lease: Option<Lease>,
    pub(super) waits: bool,
    /// False between cells.
    pub(super) has_cell: bool,
    pub(super) has_context: bool,
    /// Whether its context is off the GPU.
    pub(super) sleeps: bool,
    pub(super) is_resident: bool,
    pub(super) moves: bool,
    pub(super) bytes: u64,
    /// The part of them that is on the host.
    pub(super) away: u64,
    /// The part of its host memory that was allocated while the rest was there: nothing has been written to it.
    pub(super) on_paper: u64,
    /// Host memory reserved for it, used or not.
    pub(super) places: u64,
    /// The request to pin ahead that it is carrying out: its number and its bytes.
    pub(super) makes: Option<(u64, u64)>,
    /// Whether a request to pin ahead is not answered yet.
    pub(super) is_asked_to_pin: bool,
    /// Granted bytes that the driver did not have; the arbiter does not know that yet.
    pub(super) not_found: u64,
    pub(super) gone: bool,
    /// When it began to wait.
    pub(super) waits_since: Duration,
}

impl Session {
    /// Places on the host that hold memory.
    pub(super) fn filled(&self) -> u64 {
        self.away - self.on_paper
    }

    pub(super) fn empty(&self) -> u64 {
        self.places - self.filled()
    }

    /// Bytes on the GPU, or on their way there.
    pub(super) fn bytes_there(&self) -> u64 {
        match self.moves && self.is_resident {
            true => self.bytes,
            false => self.bytes - self.away,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) epoch: Epoch,
    pub(super) computes: bool,
}
