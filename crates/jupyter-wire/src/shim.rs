//! The private socket between a kernel's Python shim and the process that started the kernel.
//!
//! In: frames of the kernel that was started, and of no other process. Out: frames, with at most one file
//! descriptor each. The types are in `baton_protocol::shim`, the frames in [`baton_transport::frames`].

use baton_transport::frames::{FrameError, split};
use nix::{
    sys::socket::{
        ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt::PassCred,
    },
    unistd::Pid,
};
use std::{
    io::{self, IoSliceMut},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
};

pub use baton_transport::frames::{FrameReader as ShimReader, FrameWriter as ShimWriter};

/// The environment variable with the path to which the kernel connects.
pub const SHIM_SOCKET: &str = "BATON_SHIM_SOCKET";

/// The environment variable with the open descriptor that is a session's connection.
pub const SHIM_DESCRIPTOR: &str = "BATON_SHIM_DESCRIPTOR";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShimError {
    #[error("Failed to listen on {path}")]
    Bind {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("The connection to the Python kernel broke")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("The session closed its connection before its first message")]
    Closed,
    #[error("The connection was made by another process")]
    Foreign,
}

/// A connection whose other end a kernel inherits. It has no path.
pub struct ShimPair {
    stream: UnixStream,
}

impl ShimPair {
    /// Also returns the kernel's end.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (own, kernel) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        // Set this before the kernel exists, so that the operating system records who sends the first byte.
        setsockopt(&own, PassCred, &true)?;
        let stream = UnixStream::from_std(own)?;
        Ok((Self { stream }, kernel.into()))
    }

    /// Waits for the byte with which the kernel greets. The operating system reports the sender,
    /// and translates its process id from the kernel's namespace.
    pub async fn greeted(self) -> Result<(Pid, ShimReader, ShimWriter), ShimError> {
        let stream = &self.stream;
        let sender = sender_of_byte(stream).await?;
        setsockopt(stream, PassCred, &false).map_err(io::Error::from)?;
        let kernel = sender.ok_or(ShimError::Closed)?;
        let (reader, writer) = split(self.stream);
        Ok((kernel, reader, writer))
    }
}

/// Waits for a byte on a socket with `SO_PASSCRED`, and returns the sender's process id as this
/// process sees it. `None`: the other end is closed.
///
/// # Errors
/// If the socket cannot be read.
pub async fn sender_of_byte(stream: &UnixStream) -> io::Result<Option<Pid>> {
    stream
        .async_io(Interest::READABLE, || receive_sender(stream))
        .await
}

fn receive_sender(stream: &UnixStream) -> io::Result<Option<Pid>> {
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(UnixCredentials);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let credentials = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmCredentials(sender) => Some(Pid::from_raw(sender.pid())),
        _ => None,
    });
    Ok(credentials)
}

/// Wraps one end of a pair of sockets that the process `pid` made.
///
/// # Errors
/// If another process made it.
pub fn of_peer(stream: UnixStream, pid: u32) -> Result<(ShimReader, ShimWriter), ShimError> {
    match is_process(stream.peer_cred()?.pid(), pid) {
        true => Ok(split(stream)),
        false => Err(ShimError::Foreign),
    }
}

fn is_process(peer: Option<i32>, pid: u32) -> bool {
    peer.is_some_and(|peer| u32::try_from(peer) == Ok(pid))
}

pub struct ShimListener {
    listener: UnixListener,
    path: PathBuf,
}

impl ShimListener {
    /// Listens in `folder`, which only this user can enter.
    pub fn bind(folder: &Path) -> Result<Self, ShimError> {
        let path = folder.join("shim");
        match UnixListener::bind(&path) {
            Ok(listener) => Ok(Self { listener, path }),
            Err(source) => Err(ShimError::Bind { path, source }),
        }
    }

    /// The value of [`SHIM_SOCKET`] for the kernel.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the next connection that comes from `kernel_pid` itself; others are closed.
    pub async fn accept(&self, kernel_pid: u32) -> Result<(ShimReader, ShimWriter), ShimError> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let peer = stream.peer_cred()?.pid();
            if is_process(peer, kernel_pid) {
                return Ok(split(stream));
            }
            tracing::warn!(
                ?peer,
                "A process other than the kernel tried to open the kernel's private socket"
            );
        }
    }
}
