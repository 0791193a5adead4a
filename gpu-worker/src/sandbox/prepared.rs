//! A sandbox that is started before the session for which it will be used is known.
//!
//! In: nothing about a session. Out: bubblewrap in a control group of its own, waiting for its remaining arguments.
//! This makes starts faster: joining a control group takes as long as the rest of a start, because the system waits for
//! all processors.
//!
//! **Invariant:** nothing runs in it before a session occupies it, and it is used for one session only.

use super::{Bubblewrap, Entrance, Holder, Inside, Outermost, SandboxError, Wrapped, sys::inherit};
use baton_mirror::Root;
use nix::{
    fcntl::OFlag,
    unistd::{Pid, pipe2},
};
use std::{
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    process::Stdio,
};
use tokio::process::Command;

#[derive(Debug)]
pub(crate) struct PreparedSandbox {
    /// Where bubblewrap receives its remaining arguments.
    arguments: File,
    wrapped: Wrapped,
    holder: Holder,
    outermost: Outermost,
}

impl PreparedSandbox {
    pub(crate) fn start(bubblewrap: &Bubblewrap) -> Result<Self, SandboxError> {
        let mut command = Command::new(bubblewrap.program());
        let wrapped = bubblewrap.around(&mut command)?;
        let (its_arguments, arguments) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        command
            .arg("--args")
            .arg(its_arguments.as_raw_fd().to_string());
        inherit(&mut command, vec![its_arguments]);
        let holder = Holder::start(&mut command)?;
        let outermost = Outermost::spawn(command.stderr(Stdio::null()))?;
        Ok(Self {
            arguments: File::from(arguments),
            wrapped,
            holder,
            outermost,
        })
    }

    /// A process that writes into these files joins the group.
    pub(crate) fn join_files(&self) -> io::Result<Vec<OwnedFd>> {
        let group = self.wrapped.group.as_ref();
        group.map_or_else(|| Ok(Vec::new()), super::Group::join_files)
    }

    /// Bubblewrap's process.
    pub(crate) fn process(&self) -> Option<Pid> {
        self.outermost.process()
    }

    /// Whether bubblewrap's process still runs.
    pub(crate) fn is_ready(&self) -> bool {
        self.process()
            .is_some_and(|process| Path::new(&format!("/proc/{process}/exe")).exists())
    }

    /// Lets bubblewrap build the session's sandbox, and returns how to enter it.
    pub(crate) async fn occupy(
        mut self,
        bubblewrap: &Bubblewrap,
        inside: &Inside,
    ) -> Result<(Entrance, Occupied), SandboxError> {
        let mut text = Vec::new();
        // Bubblewrap was started before the folder was known, so it could not inherit its descriptor.
        let by_path = |root: &Root| ["--bind".into(), root.path().into()];
        for argument in inside.view.arguments(by_path) {
            text.extend_from_slice(argument.as_bytes());
            text.push(0);
        }
        self.arguments.write_all(&text)?;
        drop(self.arguments);
        let carrier = match self.wrapped.gate {
            Some(gate) => bubblewrap.connect(gate).await?,
            None => None,
        };
        let entrance = self
            .holder
            .entrance(bubblewrap, &mut self.outermost)
            .await?;
        inside.view.check(entrance.holder)?;
        let occupied = Occupied {
            outermost: self.outermost,
            group: self.wrapped.group,
            carrier,
        };
        Ok((entrance, occupied))
    }
}

/// The worker's part of a prepared sandbox that a session occupies.
pub(crate) struct Occupied {
    pub(crate) outermost: Outermost,
    pub(crate) group: Option<super::Group>,
    pub(crate) carrier: Option<super::Carrier>,
}
