//! A fork and the sandbox that it will enter, prepared before the session that will use them is known.
//!
//! **Invariant:** both are used for one session only, and receive nothing before they belong to it.

use super::Parked;
use crate::sandbox::{Group, PreparedSandbox, Sandbox, SandboxError};
use std::{io, os::fd::OwnedFd};

#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) enclosure: SpareEnclosure,
    pub(crate) parked: Parked,
}

/// What the fork will enter.
#[derive(Debug)]
pub(crate) enum SpareEnclosure {
    /// It has a control group of its own.
    Bubblewrap(Box<PreparedSandbox>),
    /// The control group of a fork under Landlock, if it has one.
    Landlock(Option<Group>),
    None,
}

impl SpareEnclosure {
    pub(super) fn make(sandbox: Option<&Sandbox>) -> Result<Self, SandboxError> {
        Ok(match sandbox {
            Some(Sandbox::Bubblewrap(bubblewrap)) => {
                Self::Bubblewrap(Box::new(PreparedSandbox::start(bubblewrap)?))
            }
            Some(Sandbox::Landlock(landlock)) => Self::Landlock(landlock.group()?),
            None => Self::None,
        })
    }

    /// A process that writes into these files joins the control group.
    pub(super) fn join_files(&self) -> io::Result<Vec<OwnedFd>> {
        match self {
            Self::Bubblewrap(prepared) => prepared.join_files(),
            Self::Landlock(Some(group)) => group.join_files(),
            Self::Landlock(None) | Self::None => Ok(Vec::new()),
        }
    }
}

impl Spare {
    /// Whether its processes still run.
    pub(super) fn is_ready(&self) -> bool {
        let is_enclosed = match &self.enclosure {
            SpareEnclosure::Bubblewrap(prepared) => prepared.is_ready(),
            SpareEnclosure::Landlock(_) | SpareEnclosure::None => true,
        };
        self.parked.is_alive() && is_enclosed
    }
}
