//! What a worker is doing, as `systemctl status` shows it.

use std::fmt;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    pub connected: bool,
    /// How many cells it prepares or runs.
    pub cells: usize,
    /// It accepts no more jobs.
    pub leaving: bool,
    /// It runs a trial cell before it connects to the broker.
    pub trying: bool,
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.trying {
            return formatter.write_str("Testing whether sessions start here");
        }
        formatter.write_str(match (self.leaving, self.connected) {
            (false, true) => "Connected to the broker",
            (false, false) => "Looking for the broker",
            (true, true) => "Leaving when its cells have ended",
            (true, false) => "Leaving, and looking for the broker",
        })?;
        match self.cells {
            0 => Ok(()),
            1 => formatter.write_str("; 1 cell runs"),
            cells => write!(formatter, "; {cells} cells run"),
        }
    }
}
