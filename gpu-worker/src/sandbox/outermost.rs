//! The child process that the worker starts for a session, a probe or a step of a build: bubblewrap, or, if there is
//! none, the program itself.

use super::sys::ignore_sigterm;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::io;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::UnixStream,
    process::{Child, Command},
};

/// When this is dropped, the process ends with its process group. If it is bubblewrap, the sandbox and everything in it
/// end, too.
///
/// Bubblewrap's first child waits for a message from its parent before it asks the system to end it with the parent. If
/// only the parent were killed before that, the child would wait for ever. Until the sandbox is complete, both are in
/// one process group. A signal to the group reaches both, because the system creates no process while it sends the
/// signal.
#[derive(Debug)]
pub(crate) struct Outermost {
    child: Child,
    /// If the process inside is that of a [`Holder`](super::Holder), it ends when this is closed.
    lifeline: Option<UnixStream>,
}

impl Outermost {
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        ignore_sigterm(command);
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        Ok(Self {
            child,
            lifeline: None,
        })
    }

    /// Keeps `lifeline` open until this is dropped.
    pub(super) fn hold_open(&mut self, lifeline: UnixStream) {
        self.lifeline = Some(lifeline);
    }

    /// The process id in the worker's namespace.
    pub(crate) fn process(&self) -> Option<Pid> {
        // A child keeps its process id until its parent has waited for it.
        self.child.id().map(|id| Pid::from_raw(id.cast_signed()))
    }

    /// Waits until the process has ended, and returns its output and its errors.
    pub(super) async fn output(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (printed, said) = (self.child.stdout.take(), self.child.stderr.take());
        let (printed, said) = tokio::try_join!(all_of(printed), all_of(said))?;
        self.child.wait().await?;
        Ok((printed, said))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

async fn all_of(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut all).await?;
    }
    Ok(all)
}

impl Drop for Outermost {
    fn drop(&mut self) {
        if let Some(group) = self.process() {
            // The process may have ended already.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::processes;

    /// Like bubblewrap while its first child waits for a message.
    const STARTS: &str = "mkfifo gate; (read line < gate) & echo started; wait";

    #[tokio::test]
    async fn what_waits_for_it_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", STARTS])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut outermost = Outermost::spawn(&mut command).unwrap();
        let mut said = outermost.child().stdout.take().unwrap();
        let mut line = [0; 8];
        said.read_exact(&mut line).await.unwrap();
        let process = outermost.process().unwrap();
        let all = processes::below(process);
        let [waiting] = *all else {
            panic!("{all:?}");
        };
        drop(outermost);
        let until = Instant::now() + Duration::from_secs(60);
        while lives(waiting) {
            assert!(Instant::now() < until, "{waiting} is left");
            tokio::task::yield_now().await;
        }
    }

    /// A zombie has ended.
    fn lives(process: Pid) -> bool {
        let status =
            std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat"));
        status.is_ok_and(|status| !status.contains(") Z"))
    }
}
