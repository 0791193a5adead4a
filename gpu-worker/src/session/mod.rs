//! A session: one notebook's IPython kernel on this machine, and what it holds of the notebook's state.
//!
//! In: requests of the job that has the session. Out: what its kernel says, and its end.
//!
//! **Invariant:** when a [`Session`] is dropped, every process that it started ends.

mod environment;
mod keeper;
mod launch;
mod life;
mod log;
mod start;
mod start_error;
mod watching;
mod zygote;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use baton_chunks::Ledger;
use baton_jupyter_wire::folder::PrivateFolder;
use baton_jupyter_wire::shim::{ShimReader, ShimWriter};
use baton_protocol::shim::{FromSession, Hello, Snapshot, ToSession};
use baton_protocol::{Output, StateVersion};
use nix::unistd::Pid;
use tokio::time::{Instant, timeout_at};

pub(crate) use self::keeper::{Keeper, Keepers};
use self::life::Life;
pub(crate) use self::log::SessionLog;
pub(crate) use self::start::{StartOrder, start};
pub(crate) use self::start_error::StartError;
pub(crate) use self::zygote::{Ground, Zygote, Zygotes};
use crate::gpu::{Membership, Part, ProgramError};
use crate::mirror::SessionMirror;
use crate::packages::SessionPackages;
use crate::processes;
use crate::sandbox::Group;

/// How long a process may live on after its connections are gone.
const LAST_BREATH: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    pub(crate) shim: ShimWriter,
    /// What the shim said of itself at the start.
    pub(crate) hello: Hello,
    /// `None`: nothing was ever applied.
    pub(crate) held: Option<Held>,
    /// The same once the notebook has what its last cell left out.
    pub(crate) sent: Option<Held>,
    /// It has something that the notebook knows and that no other session can have.
    pub(crate) keeps: bool,
    /// Where it works, unless it works in the notebook's folder itself.
    pub(crate) mirror: Option<SessionMirror>,
    shim_reader: ShimReader,
    /// Since when nothing can be heard of it.
    broken_at: Option<Instant>,
    life: Life,
    kernel: Pid,
    /// As it was named to the worker.
    python: PathBuf,
    mark: String,
    /// They keep what its cells left out, and end by themselves.
    keepers: Keepers,
    log: SessionLog,
    /// What it has of the GPU; goes when its processes have been ended.
    gpu: Part,
    /// Where the kernel's sockets lie; goes last.
    _folder: PrivateFolder,
    _packages: SessionPackages,
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
    Ended(Death),
}

/// What becomes of a session that no job has.
pub(crate) enum AfterCell {
    /// What its last cell left out can be read.
    Settled(Snapshot, Option<Keeper>),
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
    /// The limit of memory that its control group exceeded.
    pub(crate) exceeded_memory_bytes: Option<u64>,
}

impl Session {
    /// What the session says next. Cancel safe. After [`SessionEvent::Ended`] there is nothing more.
    pub(crate) async fn next(&mut self) -> SessionEvent {
        let broken_at = match self.broken_at {
            Some(broken_at) => broken_at,
            None => tokio::select! {
                // What it has said counts, also when it has ended since.
                biased;
                never = serve(&mut self.mirror) => match never {},
                message = self.shim_reader.receive() => {
                    match message {
                        Ok(Some(message)) => return SessionEvent::Said(message),
                        Ok(None) => {}
                        Err(error) => tracing::warn!(%error, "The connection to a session broke"),
                    }
                    *self.broken_at.insert(Instant::now())
                }
                status = self.life.ended() => return SessionEvent::Ended(self.death(status)),
            },
        };
        let status = timeout_at(broken_at + LAST_BREATH, self.life.ended()).await;
        SessionEvent::Ended(self.death(status.ok().flatten()))
    }

    fn death(&self, status: Option<ExitStatus>) -> Death {
        Death {
            status,
            last_lines: self.log.last_lines(5),
            exceeded_memory_bytes: self.life.group().and_then(Group::exceeded_memory_bytes),
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
    pub(crate) async fn after_cell(&mut self, may_leave: bool) -> AfterCell {
        loop {
            let released = self.gpu().map(Membership::released);
            tokio::select! {
                event = self.next() => match event {
                    SessionEvent::Ended(death) => return AfterCell::Ended(death),
                    SessionEvent::Said(FromSession::Settled { state, keeper, .. }) => {
                        let keeper = keeper.and_then(|process| {
                            let walls = self.life.walls();
                            self.keepers.adopt(process, &self.mark, walls)
                        });
                        return AfterCell::Settled(state, keeper);
                    }
                    SessionEvent::Said(_) => {}
                },
                () = or_never(released), if may_leave => return AfterCell::Released,
            }
        }
    }

    /// What it holds for a message that continues this.
    pub(crate) fn held_for(&self, base: StateVersion) -> Option<&Held> {
        let held = [&self.held, &self.sent];
        let mut held = held.into_iter().flatten();
        held.find(|held| held.version == base)
    }

    /// The same, and it is about to hold something else.
    pub(crate) fn take_held(&mut self, base: StateVersion) -> Option<Held> {
        let held = [self.held.take(), self.sent.take()];
        held.into_iter().flatten().find(|held| held.version == base)
    }

    /// What its last cell left out was sent.
    pub(crate) fn has_sent(&mut self, sent: Held) {
        let continues = |held: &Held| held.version.after_message() == sent.version;
        if self.held.as_ref().is_some_and(continues) {
            self.sent = Some(sent);
        }
    }

    /// A connection that broke is seen when it is listened to.
    pub(crate) async fn answer(&mut self, message: ToSession) {
        if let Err(error) = self.shim.send(&message).await {
            tracing::warn!(%error, "A session does not accept messages");
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

    /// Whether the system keeps all of its processes below the limit of memory.
    pub(crate) fn memory_is_limited(&self) -> bool {
        self.life.group().is_some_and(Group::limits_memory)
    }

    pub(crate) fn kernel(&self) -> Pid {
        self.kernel
    }

    pub(crate) fn python(&self) -> &Path {
        &self.python
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let keepers = self.keepers.living();
        self.life.end_all(self.kernel, &self.mark, &keepers);
    }
}
