//! A fork of a zygote that waits for its request, and the request.

use nix::{
    libc,
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
    unistd::Pid,
};
use serde::Serialize;
use serde_bytes::ByteBuf;
use std::{
    ffi::OsStr,
    io::{self, IoSlice},
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    net::UnixStream,
    process::Command,
};

/// What a fork becomes. `baton_shim/session/zygote.py` reads this.
#[derive(Serialize)]
pub(crate) struct ForkRequest {
    /// Python code to run instead of a session.
    pub(crate) program: Option<&'static str>,
    pub(crate) arguments: Vec<ByteBuf>,
    pub(crate) environment: Vec<(ByteBuf, ByteBuf)>,
    pub(crate) folder: ByteBuf,
    /// The numbers that the first descriptors sent with the request have in the fork. If there is a sandbox to enter, a
    /// descriptor of a process inside it follows; if system calls wait, a socket for their listener comes last.
    pub(crate) descriptors: Vec<i32>,
    /// The namespaces to enter, as `setns` takes them; zero if there is no sandbox to enter.
    pub(crate) namespaces: libc::c_int,
    /// The filter of system calls of a sandbox; empty if there is none to install.
    pub(crate) filter: ByteBuf,
    /// The filter that lets system calls wait for the worker; empty if no call waits.
    pub(crate) watched: ByteBuf,
}

pub(crate) fn bytes(text: impl AsRef<OsStr>) -> ByteBuf {
    ByteBuf::from(text.as_ref().as_bytes())
}

/// The variables of a command, for a request.
pub(crate) fn variables(command: &Command) -> Vec<(ByteBuf, ByteBuf)> {
    let variables = command.as_std().get_envs();
    variables
        .filter_map(|(name, value)| Some((bytes(name), bytes(value?))))
        .collect()
}

/// A fork that waits for its request. The fork ends if this is dropped.
#[derive(Debug)]
pub(crate) struct Parked {
    connection: UnixStream,
    process: Pid,
}

impl Parked {
    pub(super) fn new(connection: UnixStream, process: Pid) -> Self {
        Self {
            connection,
            process,
        }
    }

    /// The fork's process id. A fork that will enter a sandbox has a child that continues inside; this is then the id
    /// of the parent, which ends.
    pub(crate) fn process(&self) -> Pid {
        self.process
    }

    pub(super) fn is_alive(&self) -> bool {
        Path::new(&format!("/proc/{}/exe", self.process)).exists()
    }

    /// Turns the fork into the process that the request describes. `files`: the descriptors for it. Returns
    /// [`Self::process`].
    pub(crate) async fn become_session(
        mut self,
        request: &ForkRequest,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<Pid> {
        let connection = &self.connection;
        let text = baton_protocol::encode(request);
        let sent = connection
            .async_io(Interest::WRITABLE, || send(connection, &text, files))
            .await?;
        self.connection.write_all(&text[sent..]).await?;
        self.connection.shutdown().await?;
        Ok(self.process)
    }
}

pub(super) fn send(
    socket: &UnixStream,
    text: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let files: Vec<_> = files.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    Ok(sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(text)],
        &rights,
        flags,
        None,
    )?)
}
