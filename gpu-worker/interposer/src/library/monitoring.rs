//! What the driver's monitoring shows inside a session: what the session itself has, and may have, of its GPU.
//!
//! The worker is asked, because `nvidia-smi` does not use the GPU and does not know the session's processes.

use super::{
    connection::{Frames, WELCOME, introduction},
    wire::{FromSession, ToSession},
};
use std::{
    io::{self, Write as _},
    os::unix::net::UnixStream,
    sync::Arc,
};

pub(super) struct Use {
    /// 0 means all of the GPU's memory.
    pub(super) cap_bytes: u64,
    pub(super) bytes: u64,
    /// Each process and its bytes.
    pub(super) processes: Vec<(u32, u64)>,
}

impl Use {
    /// What the session's other processes have.
    pub(super) fn bytes_of_others(&self) -> u64 {
        let others = self
            .processes
            .iter()
            .filter(|(process, _)| *process != std::process::id());
        others.map(|(_, bytes)| bytes).sum()
    }
}

/// Returns `None` outside of sessions, and if the worker does not answer.
pub(super) fn own_use() -> Option<Use> {
    let introduction = introduction()?;
    let ask = || -> io::Result<Use> {
        let stream = Arc::new(UnixStream::connect(&introduction.socket)?);
        stream.set_read_timeout(Some(WELCOME))?;
        let token = introduction.token;
        (&*stream).write_all(&FromSession::Look { token }.encode())?;
        let mut frames = Frames::new(stream);
        let Some(ToSession::Has {
            cap_bytes,
            bytes,
            processes,
        }) = frames.next()?
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut next = || match frames.next()? {
            Some(ToSession::ProcessHas { process, bytes }) => Ok((process, bytes)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Use {
            cap_bytes,
            bytes,
            processes: (0..processes).map(|_| next()).collect::<io::Result<_>>()?,
        })
    };
    ask().ok()
}
