//! What a session needs that can be made before it is known whose session it is: a fork, and the sandbox that it will enter.
//!
//! **Invariant:** both are used for one session, and hear nothing before.

use std::os::fd::AsFd as _;

use super::process::{Parked, Zygote, ZygoteError};
use crate::sandbox::{Group, Room, Sandbox};

#[derive(Debug)]
pub(crate) struct Spare {
    /// What the fork enters, if it is to enter something.
    pub(crate) room: Option<Room>,
    /// The group of a fork that enters nothing.
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

    /// Whether nobody has ended it meanwhile.
    pub(super) fn is_ready(&self) -> bool {
        self.parked.is_alive() && self.room.as_ref().is_none_or(Room::is_ready)
    }
}
