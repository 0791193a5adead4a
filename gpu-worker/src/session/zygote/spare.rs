//! A fork and the sandbox that it will enter, prepared before the session that will use them is known.
//!
//! **Invariant:** both are used for one session only, and receive nothing before they belong to it.

use super::process::{Parked, Zygote, ZygoteError};
use crate::sandbox::{Group, PreparedSandbox, Sandbox};
use std::os::fd::AsFd as _;

#[derive(Debug)]
pub(crate) struct Spare {
    /// The sandbox that the fork will enter; `None` without bubblewrap.
    pub(crate) prepared: Option<PreparedSandbox>,
    /// The control group of a fork under Landlock. (A prepared sandbox has its own.)
    pub(crate) group: Option<Group>,
    pub(crate) parked: Parked,
}

impl Spare {
    pub(super) async fn make(
        zygote: &Zygote,
        sandbox: Option<&Sandbox>,
    ) -> Result<Self, ZygoteError> {
        let (mut prepared, mut group) = (None, None);
        match sandbox {
            Some(Sandbox::Bubblewrap(bubblewrap)) => {
                prepared = Some(PreparedSandbox::start(bubblewrap)?)
            }
            Some(Sandbox::Landlock(landlock)) => group = landlock.group()?,
            None => {}
        }
        let join_files = match (&prepared, &group) {
            (Some(prepared), _) => prepared.join_files()?,
            (None, Some(group)) => group.join_files()?,
            (None, None) => Vec::new(),
        };
        let borrowed: Vec<_> = join_files
            .iter()
            .map(|join_file| join_file.as_fd())
            .collect();
        let parked = zygote.park(&borrowed).await?;
        Ok(Self {
            prepared,
            group,
            parked,
        })
    }

    /// Whether its processes still run.
    pub(super) fn is_ready(&self) -> bool {
        self.parked.is_alive() && self.prepared.as_ref().is_none_or(PreparedSandbox::is_ready)
    }
}
