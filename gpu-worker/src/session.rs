//! A session: one notebook's IPython kernel on this machine, with the state that it shares with the notebook.
//!
//! In: requests of the job that uses the session. Out: messages from its kernel, and its end.
//!
//! **Invariant:** when a [`Session`] is dropped, every process that it started ends.

mod environment;
mod keeper;
mod launch;
mod life;
mod log;
mod start;
mod start_error;
mod starting;
mod watching;
mod zygote;

use self::life::Life;
use crate::{
    disk::{Disk, Full},
    gpu::{Membership, Part, ProgramError},
    mirror::SessionMirror,
    packages::SessionPackages,
    processes,
    sandbox::{Group, Share},
};
use baton_chunks::Ledger;
use baton_jupyter_wire::{
    folder::PrivateFolder,
    shim::{ShimReader, ShimWriter},
};
use baton_protocol::{
    Output, StateVersion,
    shim::{FromSession, Hello, Snapshot, ToSession},
};
use baton_transport::frames::FrameError;
use nix::unistd::Pid;
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use self::keeper::{Keeper, Keepers};
pub(crate) use self::log::SessionLog;
pub(crate) use self::start::{StartRequest, start};
pub(crate) use self::start_error::StartError;
pub(crate) use self::zygote::{Ground, Zygote, Zygotes};

/// How long to wait for the end of a process whose connection has closed.
const LAST_BREATH: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    pub(crate) shim: ShimWriter,
    /// What the shim reported about itself at the start.
    pub(crate) hello: Hello,
    /// The state of the object table; `None` if no state was applied yet.
    pub(crate) held: Option<TableState>,
    /// The state of the object table once the notebook has the deferred state of the last cell.
    pub(crate) sent: Option<TableState>,
    /// Whether it holds objects that are kept remote, so that no other session can replace it.
    pub(crate) keeps: bool,
    /// `None` if it works in the notebook's folder itself.
    pub(crate) mirror: Option<SessionMirror>,
    shim_reader: ShimReader,
    /// `None` if it may store any amount on the disk.
    disk: Option<Disk>,
    /// When its connection closed or broke.
    broken_at: Option<Instant>,
    /// The size of a message that was too large. It broke the connection.
    refused_bytes: Option<u64>,
    life: Life,
    kernel: Pid,
    /// What the kernel had mapped when [`Self::has_other_mappings`] was last asked.
    mapped_pages: Option<u64>,
    /// The path of its Python, as the configuration or the notebook names it.
    python: PathBuf,
    mark: String,
    /// The processes with deferred state of its cells. They can outlive the session.
    keepers: Keepers,
    log: SessionLog,
    /// Its share of the GPU. This is dropped after its processes have been ended.
    gpu: Part,
    /// The folder with the kernel's sockets. This is dropped after all fields above.
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

async fn full(disk: &mut Option<Disk>) -> Full {
    match disk {
        Some(disk) => disk.full().await,
        None => std::future::pending().await,
    }
}

/// The state of a session's object table.
pub(crate) struct TableState {
    pub(crate) version: StateVersion,
    pub(crate) ledger: Ledger,
}

pub(crate) enum SessionEvent {
    Message(FromSession),
    Ended(Death),
}

/// An event of a session that no job uses.
pub(crate) enum AfterCell {
    /// The deferred state of its last cell can be read.
    DeferredReady(Snapshot, Option<Keeper>),
    Ended(Death),
    /// Other sessions need the memory that it takes on the GPU.
    Released,
}

/// How a session ended that the worker did not end, or why it has to end.
#[derive(Debug)]
pub(crate) struct Death {
    /// `None` if only its connection broke, or if the status is unknown.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) last_lines: Vec<String>,
    /// The size of its last message, if that was too large.
    pub(crate) refused_bytes: Option<u64>,
    /// The memory limit, if its control group exceeded it.
    pub(crate) exceeded_memory_bytes: Option<u64>,
    /// Set if it has to end because it takes too much disk.
    pub(crate) full_disk: Option<Full>,
}

impl Session {
    /// Waits for the session's next message or its end. Cancel safe. After [`SessionEvent::Ended`] there are no more
    /// events.
    pub(crate) async fn next(&mut self) -> SessionEvent {
        let broken_at = match self.broken_at {
            Some(broken_at) => broken_at,
            None => tokio::select! {
                // Messages that were sent before the end are received first.
                biased;
                never = serve(&mut self.mirror) => match never {},
                full = full(&mut self.disk) => {
                    let mut death = self.death(None);
                    death.full_disk = Some(full);
                    return SessionEvent::Ended(death);
                }
                message = self.shim_reader.receive() => {
                    match message {
                        Ok(Some(message)) => return SessionEvent::Message(message),
                        Ok(None) => {}
                        Err(error) => {
                            tracing::warn!(%error, "The connection to a session broke");
                            if let FrameError::TooLarge(bytes) = error {
                                self.refused_bytes = Some(bytes);
                            }
                        }
                    }
                    *self.broken_at.insert(Instant::now())
                }
                status = self.life.ended() => return SessionEvent::Ended(self.death(status)),
            },
        };
        let status = timeout_at(broken_at + LAST_BREATH, self.life.ended()).await;
        SessionEvent::Ended(self.death(status.ok().flatten()))
    }

    /// Waits for its end without reading its messages: the session waits once its connection is full. Cancel safe.
    pub(crate) async fn ended(&mut self) -> Death {
        let status = tokio::select! {
            never = serve(&mut self.mirror) => match never {},
            status = self.life.ended() => status,
        };
        self.death(status)
    }

    fn death(&self, status: Option<ExitStatus>) -> Death {
        Death {
            status,
            last_lines: self.log.last_lines(5),
            refused_bytes: self.refused_bytes,
            exceeded_memory_bytes: self.life.group().and_then(Group::exceeded_memory_bytes),
            full_disk: None,
        }
    }

    /// The next output that the session published before its end and that was not received yet; `None` after the last
    /// one, and at the deadline. (Does not wait until the connection closes, because a keeper may hold it open.) Its
    /// processes must have been ended, because they could send more for ever.
    pub(crate) async fn remaining(&mut self, deadline: Instant) -> Option<Output> {
        const PATIENCE: Duration = Duration::from_millis(20);
        while Instant::now() < deadline {
            let message = timeout(PATIENCE, self.shim_reader.receive()).await;
            if let FromSession::Published { output } = message.ok()?.ok()?? {
                return Some(output);
            }
        }
        None
    }

    /// Ends its processes, except the keepers.
    pub(crate) fn end_processes(&mut self) {
        let keepers = self.keepers.living();
        self.life.end_all(self.kernel, &self.mark, &keepers);
    }

    /// Waits for an event while no job uses the session. Outputs are dropped, because they belong to no cell.
    /// `may_leave`: whether the session may leave the GPU.
    pub(crate) async fn after_cell(&mut self, may_leave: bool) -> AfterCell {
        loop {
            let released = self.gpu().map(Membership::released);
            tokio::select! {
                event = self.next() => match event {
                    SessionEvent::Ended(death) => return AfterCell::Ended(death),
                    SessionEvent::Message(FromSession::DeferredReady { state, keeper, .. }) => {
                        let keeper = keeper.and_then(|process| {
                            let enclosure = self.life.enclosure();
                            self.keepers.adopt(process, &self.mark, enclosure)
                        });
                        return AfterCell::DeferredReady(state, keeper);
                    }
                    SessionEvent::Message(_) => {}
                },
                () = or_never(released), if may_leave => return AfterCell::Released,
            }
        }
    }

    /// The state with this version, if the session has it.
    pub(crate) fn held_for(&self, base: StateVersion) -> Option<&TableState> {
        let held = [&self.held, &self.sent];
        let mut held = held.into_iter().flatten();
        held.find(|held| held.version == base)
    }

    /// Takes the state with this version, and drops the other one, because the session is about to get a new state.
    pub(crate) fn take_held(&mut self, base: StateVersion) -> Option<TableState> {
        let held = [self.held.take(), self.sent.take()];
        held.into_iter().flatten().find(|held| held.version == base)
    }

    /// Notes the state that the notebook has after the deferred state of the last cell was sent.
    pub(crate) fn has_sent(&mut self, sent: TableState) {
        let continues = |held: &TableState| held.version.after_message() == sent.version;
        if self.held.as_ref().is_some_and(continues) {
            self.sent = Some(sent);
        }
    }

    /// Sends a message to the session. An error is only logged, because [`Self::next`] notices a broken connection.
    pub(crate) async fn answer(&mut self, message: ToSession) {
        if let Err(error) = self.shim.send(&message).await {
            tracing::warn!(%error, "A session does not accept messages");
        }
    }

    /// Interrupts the kernel and its process group, like Ctrl-C in a terminal.
    pub(crate) fn interrupt(&self) {
        processes::interrupt(self.kernel);
    }

    /// Takes the session off the GPU. Returns `false` if that is impossible; the session must end then.
    pub(crate) async fn sleep(&mut self) -> bool {
        match self.gpu.membership_mut() {
            Some(membership) => membership.sleep().await,
            None => false,
        }
    }

    /// Returns the session to the GPU if it is off. After an error the session must end.
    pub(crate) async fn wake(&mut self) -> Result<(), ProgramError> {
        match self.gpu.membership_mut() {
            Some(membership) => membership.wake().await,
            None => Ok(()),
        }
    }

    /// The session's part in time-sharing; `None` in other GPU modes.
    pub(crate) fn gpu(&self) -> Option<&Membership> {
        self.gpu.membership()
    }

    /// Whether it waits for its turn on the GPU, or for room there.
    pub(crate) async fn waits_for_gpu(&self) -> bool {
        match self.gpu() {
            Some(gpu) => gpu.waits().await,
            None => false,
        }
    }

    /// How long it has waited for its turn on the GPU since its usage was last read. Only between cells, because this
    /// reads the usage.
    pub(crate) async fn waited_for_gpu(&self) -> Duration {
        match self.gpu() {
            Some(gpu) => gpu.usage().await.waited,
            None => Duration::ZERO,
        }
    }

    /// Sets what its processes get of the processors while other sessions want them, too.
    pub(crate) fn set_share(&self, share: Share) {
        let set = self.life.group().map(|group| group.set_share(share));
        if let Some(Err(error)) = set {
            tracing::warn!(%error, "Failed to set a session's share of the processors");
        }
    }

    /// Whether a control group limits the memory of its processes.
    pub(crate) fn memory_is_limited(&self) -> bool {
        self.life.group().is_some_and(Group::limits_memory)
    }

    pub(crate) fn kernel(&self) -> Pid {
        self.kernel
    }

    /// Whether the kernel maps more or less memory than when this was last asked. A library that it has loaded since is
    /// mapped.
    pub(crate) fn has_other_mappings(&mut self) -> bool {
        let mapped = processes::mapped_pages(self.kernel);
        mapped != std::mem::replace(&mut self.mapped_pages, mapped)
    }

    pub(crate) fn python(&self) -> &Path {
        &self.python
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_processes();
    }
}
