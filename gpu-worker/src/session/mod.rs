//! A session: one notebook's IPython kernel on this machine, and what it holds of the notebook's state.
//!
//! In: requests of the job that has the session. Out: what its kernel says, and its end.
//!
//! **Invariant:** when a [`Session`] is dropped, every process that it started ends.

mod away;
mod log;
mod start;

use std::convert::Infallible;
use std::process::ExitStatus;
use std::time::Duration;

use baton_blobs::Ledger;
use baton_jupyter_link::folder::PrivateFolder;
use baton_jupyter_link::shim::{ShimReader, ShimWriter};
use baton_protocol::shim::{FromSession, Hello, ToSession};
use baton_protocol::{Output, StateVersion};
use nix::unistd::Pid;
use tokio::process::Child;

pub(crate) use self::away::Away;
pub(crate) use self::log::SessionLog;
pub(crate) use self::start::{StartError, StartOrder, start};
use crate::gpu::{Membership, Part, ProgramError};
use crate::mirror::SessionMirror;
use crate::processes;

/// How long a process may live on after its connections are gone.
const LAST_BREATH: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    pub(crate) shim: ShimWriter,
    /// What the shim said of itself at the start.
    pub(crate) hello: Hello,
    /// `None`: nothing was ever applied.
    pub(crate) held: Option<Held>,
    /// What its last cell left out.
    pub(crate) away: Option<Away>,
    /// Where it works, unless it works in the notebook's folder itself.
    pub(crate) mirror: Option<SessionMirror>,
    shim_reader: ShimReader,
    child: Child,
    kernel: Pid,
    mark: String,
    log: SessionLog,
    /// What it has of the GPU; goes when its processes have been ended.
    gpu: Part,
    /// Where the kernel's sockets lie; goes last.
    _folder: PrivateFolder,
}

async fn or_never(end: Option<impl Future<Output = ()>>) {
    match end {
        Some(end) => end.await,
        None => std::future::pending().await,
    }
}

async fn serve(mirror: &mut Option<SessionMirror>) -> Infallible {
    match mirror {
        Some(mirror) => mirror.serve().await,
        None => std::future::pending().await,
    }
}

/// The state that a session's object table has.
pub(crate) struct Held {
    pub(crate) version: StateVersion,
    pub(crate) ledger: Ledger,
}

pub(crate) enum SessionEvent {
    Said(FromSession),
    /// What its last cell left out was sent, or never will be.
    RestSent,
    Ended(Death),
}

/// What becomes of a session that no job has.
pub(crate) enum Rest {
    /// What its last cell left out was sent.
    Sent,
    Ended(Death),
    /// Others lack what it takes of the GPU.
    Released,
}

/// How a session ended that nobody ended.
#[derive(Debug)]
pub(crate) struct Death {
    /// `None`: its connection broke, but the process lived on.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) last_lines: Vec<String>,
}

impl Session {
    /// What the session says next. Cancel safe. After [`SessionEvent::Ended`] there is nothing more.
    pub(crate) async fn next(&mut self) -> SessionEvent {
        loop {
            tokio::select! {
                message = self.shim_reader.receive() => match message {
                    Ok(Some(FromSession::Settled { state, .. })) => {
                        if let Some(away) = &mut self.away {
                            away.settle(state);
                        }
                        continue;
                    }
                    Ok(Some(message)) => return SessionEvent::Said(message),
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, "The connection to a session broke"),
                },
                () = away::send(&mut self.away) => return SessionEvent::RestSent,
                never = serve(&mut self.mirror) => match never {},
                status = self.child.wait() => return SessionEvent::Ended(self.death(status.ok())),
            }
            break;
        }
        let status = tokio::time::timeout(LAST_BREATH, self.child.wait()).await;
        SessionEvent::Ended(self.death(status.ok().and_then(Result::ok)))
    }

    fn death(&self, status: Option<ExitStatus>) -> Death {
        Death {
            status,
            last_lines: self.log.last_lines(5),
        }
    }

    /// What a session that ended had still published. (Its children may hold its connection open.)
    pub(crate) async fn remains(&mut self) -> Vec<Output> {
        const PATIENCE: Duration = Duration::from_millis(20);
        let mut outputs = Vec::new();
        while let Ok(Ok(Some(message))) =
            tokio::time::timeout(PATIENCE, self.shim_reader.receive()).await
        {
            if let FromSession::Published { output } = message {
                outputs.push(output);
            }
        }
        outputs
    }

    /// Listens while no job has the session: what is published then belongs to no cell.
    pub(crate) async fn rest(&mut self) -> Rest {
        loop {
            let released = self.gpu().map(Membership::released);
            let may_leave = !self.owes();
            tokio::select! {
                event = self.next() => match event {
                    SessionEvent::RestSent => return Rest::Sent,
                    SessionEvent::Ended(death) => return Rest::Ended(death),
                    SessionEvent::Said(_) => {}
                },
                () = or_never(released), if may_leave => return Rest::Released,
            }
        }
    }

    /// Whether the notebook still needs it for what its last cell left out.
    pub(crate) fn owes(&self) -> bool {
        self.away.as_ref().is_some_and(Away::is_owed)
    }

    /// What it holds for a message that continues this.
    pub(crate) fn held_for(&self, base: StateVersion) -> Option<&Held> {
        let sent = self.away.as_ref().and_then(|away| away.sent.as_ref());
        let fits = |held: &&Held| held.version == base;
        sent.filter(fits).or(self.held.as_ref().filter(fits))
    }

    /// A connection that broke is seen when it is listened to.
    pub(crate) async fn answer(&mut self, message: ToSession) {
        if let Err(error) = self.shim.send(&message).await {
            tracing::warn!(%error, "A session takes no messages");
        }
    }

    /// As a terminal's Ctrl-C: the kernel and what it started in its process group.
    pub(crate) fn interrupt(&self) {
        processes::interrupt(self.kernel);
    }

    /// Leaves the GPU, where it can. `false`: it is to end.
    pub(crate) async fn sleep(&mut self) -> bool {
        match self.gpu.membership_mut() {
            Some(membership) => membership.sleep().await,
            None => false,
        }
    }

    /// Comes back to the GPU, if it had to leave. After an error it is to end.
    pub(crate) async fn wake(&mut self) -> Result<(), ProgramError> {
        match self.gpu.membership_mut() {
            Some(membership) => membership.wake().await,
            None => Ok(()),
        }
    }

    /// Where sessions take turns on a GPU.
    pub(crate) fn gpu(&self) -> Option<&Membership> {
        self.gpu.membership()
    }

    pub(crate) fn kernel(&self) -> Pid {
        self.kernel
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        processes::end_all(self.kernel, &self.mark);
    }
}
