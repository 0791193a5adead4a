//! What a session needs that can be made before it is known whose session it is: a fork, and the sandbox that it will enter.
//!
//! **Invariant:** both are used for one session, and hear nothing before.

use std::os::fd::AsFd as _;

use super::process::{Parked, Zygote, ZygoteError};
use crate::sandbox::{Bubblewrap, Room};

#[derive(Debug)]
pub(crate) struct Spare {
    /// `None`: the session has no sandbox.
    pub(crate) room: Option<Room>,
    pub(crate) parked: Parked,
}

impl Spare {
    pub(super) async fn make(
        zygote: &Zygote,
        sandbox: Option<&Bubblewrap>,
    ) -> Result<Self, ZygoteError> {
        let room = sandbox.map(Bubblewrap::room).transpose()?;
        let join_files = match &room {
            Some(room) => room.join_files()?,
            None => Vec::new(),
        };
        let borrowed: Vec<_> = join_files
            .iter()
            .map(|join_file| join_file.as_fd())
            .collect();
        let parked = zygote.park(&borrowed).await?;
        Ok(Self { room, parked })
    }

    /// Whether nobody has ended it meanwhile.
    pub(super) fn is_ready(&self) -> bool {
        self.parked.is_alive() && self.room.as_ref().is_none_or(Room::is_ready)
    }
}
