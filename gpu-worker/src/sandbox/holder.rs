//! A process that only holds a sandbox open, so that forks of a zygote can enter it.
//!
//! In: a command that ends with bubblewrap's own arguments. Out: a descriptor of the process inside, once the
//! sandbox is complete.

use super::{Bubblewrap, NetworkChoice, Outermost, SandboxError, sys::process_descriptor};
use crate::processes;
use baton_jupyter_wire::shim::sender_of_byte;
use nix::{
    libc,
    sys::socket::{setsockopt, sockopt::PassCred},
    unistd::Pid,
};
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{net::UnixStream, process::Command};

/// It writes a byte to the socket, because the system reports the sender's process id in the worker's own namespace. It
/// then runs until the other end is closed, which also happens when the worker ends. (Bubblewrap may miss the worker's
/// end while it starts.)
const PROGRAM: &str = "echo >&0; exec cat";

const PATIENCE: Duration = Duration::from_secs(20);

/// The connection on which the process inside a sandbox reports that it runs.
#[derive(Debug)]
pub(crate) struct Holder {
    greeting: UnixStream,
}

/// What a fork needs to enter a sandbox.
pub(crate) struct Entrance {
    /// Refers to a process that is in all of the sandbox's namespaces.
    pub(crate) process: OwnedFd,
    pub(crate) holder: Pid,
    /// The namespaces to enter, as `setns` takes them.
    pub(crate) namespaces: libc::c_int,
    /// The filter of system calls, in the system's binary form.
    pub(crate) filter: Vec<u8>,
}

impl Holder {
    /// Adds the program to a command that already has bubblewrap's own arguments.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let (own, its) = StdUnixStream::pair()?;
        own.set_nonblocking(true)?;
        setsockopt(&own, PassCred, &true)?;
        command
            .env_clear()
            .args(["--chdir", "/", "--", "/bin/sh", "-c", PROGRAM])
            .stdin(OwnedFd::from(its))
            .stdout(Stdio::null());
        let greeting = UnixStream::from_std(own)?;
        Ok(Self { greeting })
    }

    /// Waits until the sandbox is complete. Must be called after the command was dropped. The sandbox exists until
    /// `outermost` is dropped.
    pub(crate) async fn entrance(
        self,
        bubblewrap: &Bubblewrap,
        outermost: &mut Outermost,
    ) -> Result<Entrance, SandboxError> {
        let fails = |said: &str| SandboxError::Fails {
            said: said.to_owned(),
        };
        let greeted = tokio::time::timeout(PATIENCE, sender_of_byte(&self.greeting)).await;
        let holder = greeted
            .map_err(|_elapsed| fails("it is not ready in time"))??
            .ok_or_else(|| fails("it ended at once"))?;
        let process = process_descriptor(holder)?;
        // The process may have ended, and the number may belong to another one. The descriptor always refers to the
        // same process, so this check is made after it was opened.
        if !outermost
            .process()
            .is_some_and(|outermost| processes::below(outermost).contains(&holder))
        {
            return Err(fails("it ended at once"));
        }
        outermost.hold_open(self.greeting);
        Ok(Entrance {
            process,
            holder,
            namespaces: namespaces(bubblewrap.network),
            filter: super::filter::of_forks(),
        })
    }
}

/// A sandbox through whose mounts files can be opened for reading only.
#[derive(Debug)]
pub(crate) struct ReadOnly {
    holder: Pid,
    _outermost: Outermost,
}

impl ReadOnly {
    /// Starts one that shows the part of the system that sessions with this Python see.
    pub(crate) async fn open(bubblewrap: &Bubblewrap, python: &Path) -> Result<Self, SandboxError> {
        let mut command = Command::new(bubblewrap.program());
        let view = bubblewrap.view(python).await?;
        bubblewrap.enter(&mut command, &view)?;
        let holder = Holder::start(&mut command)?;
        let mut outermost = Outermost::spawn(command.stderr(Stdio::null()))?;
        drop(command);
        let entrance = holder.entrance(bubblewrap, &mut outermost).await?;
        Ok(Self {
            holder: entrance.holder,
            _outermost: outermost,
        })
    }

    /// The path by which this process opens a file of the system through the read-only mounts. `file` must not contain
    /// symbolic links.
    pub(crate) fn path(&self, file: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.holder);
        let below = file.strip_prefix("/").unwrap_or(file);
        Path::new(&root).join(below)
    }
}

fn namespaces(network: NetworkChoice) -> libc::c_int {
    let every = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    match network {
        NetworkChoice::Host => every,
        NetworkChoice::None | NetworkChoice::Egress => every | libc::CLONE_NEWNET,
    }
}
