//! A fork and the sandbox that it will enter, prepared before the session that will use them is known.
//!
//! **Invariant:** both are used for one session only, and receive nothing before they belong to it.

use std::os::fd::AsFd as _;

use super::process::{Parked, Zygote, ZygoteError};
use crate::sandbox::{Group, Room, Sandbox};

#[derive(Debug)]
pub(crate) struct Spare {
    /// The sandbox that the fork will enter; `None` without bubblewrap.
    pub(crate) room: Option<Room>,
    /// The control group of a fork under Landlock. (A room has its own.)
    pub(crate) group: Option<Group>,
    pub(crate) parked: Parked,
}

impl Spare {
    pub(super) async fn make(
        zygote: &Zygote,
        sandbox: Option<&Sandbox>,
    ) -> Result<Self, ZygoteError> {
        let (mut room, mut group) = (None, None);
        match sandbox {
            Some(Sandbox::Bubblewrap(bubblewrap)) => room = Some(bubblewrap.room()?),
            Some(Sandbox::Landlock(landlock)) => group = landlock.group()?,
            None => {}
        }
        let join_files = match (&room, &group) {
            (Some(room), _) => room.join_files()?,
            (None, Some(group)) => group.join_files()?,
            (None, None) => Vec::new(),
        };
        let borrowed: Vec<_> = join_files
            .iter()
            .map(|join_file| join_file.as_fd())
            .collect();
        let parked = zygote.park(&borrowed).await?;
        Ok(Self {
            room,
            group,
            parked,
        })
    }

    /// Whether its processes still run.
    pub(super) fn is_ready(&self) -> bool {
        self.parked.is_alive() && self.room.as_ref().is_none_or(Room::is_ready)
    }
}
