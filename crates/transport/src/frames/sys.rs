//! Receives files from a socket.
#![allow(unsafe_code)]

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::{
    io::{self, IoSliceMut},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// The most bytes to read at once.
const READ_BYTES: usize = 64 << 10;

/// Appends the available bytes to `buffer`, without waiting. Zero bytes mean that the other end has
/// closed. If several files arrive, the last one is kept and the others are closed.
pub(super) fn receive(
    stream: &impl AsRawFd,
    buffer: &mut Vec<u8>,
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut bytes = vec![0; READ_BYTES.min(buffer.capacity() - buffer.len()).max(1)];
    let mut space = nix::cmsg_space!([RawFd; 4]);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut file = None;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(files) = message {
            for raw in files {
                // SAFETY: the kernel has created this descriptor for this process, and nothing else owns it.
                file = Some(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
    }
    let count = received.bytes;
    buffer.extend_from_slice(&bytes[..count]);
    Ok((count, file))
}
