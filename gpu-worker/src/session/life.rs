//! How long a session's processes live, and how they end.
//!
//! In: the program that was started. Out: how the kernel ended, and signals for what is left.
//!
//! **Invariant:** a sandbox ends with the last of session and keepers, and everything inside ends with it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;

use baton_jupyter_wire::process::{kill_tree, kill_tree_but};
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::process::Child;

use crate::processes;
use crate::sandbox::{Carrier, Group};

pub(super) enum Life {
    /// The kernel is the worker's child.
    Bare(Child),
    /// The kernel is the child of its sandbox's supervisor.
    Sandboxed {
        walls: Arc<Walls>,
        /// Once the kernel is known.
        supervisor: Option<Pid>,
        status: Option<Option<ExitStatus>>,
        /// Of its network; goes with the session, because keepers need none.
        carrier: Option<Carrier>,
    },
}

/// A sandbox. Dropping it ends bubblewrap, and the system then ends all processes of its namespace.
#[derive(Debug)]
pub(super) struct Walls {
    bubblewrap: Pid,
    /// The supervisor says how the kernel ended, and lives until this closes.
    report: UnixStream,
    /// Killed when dropped.
    _child: Child,
    /// What remains in it is killed when it is dropped.
    group: Option<Group>,
}

impl Walls {
    fn new(child: Child, report: UnixStream, group: Option<Group>) -> Arc<Self> {
        // A child that was not waited for has its number.
        let bubblewrap = Pid::from_raw(child.id().unwrap_or_default().cast_signed());
        Arc::new(Self {
            bubblewrap,
            report,
            _child: child,
            group,
        })
    }

    /// The process with this number inside, as the worker calls it.
    pub(super) fn process(&self, inside: Pid) -> Option<Pid> {
        let mut processes = processes::below(self.bubblewrap).into_iter();
        processes.find(|process| processes::innermost_number(*process) == Some(inside))
    }

    async fn kernel_ended(&self) -> Option<ExitStatus> {
        let mut status = [0; 4];
        loop {
            self.report.readable().await.ok()?;
            match self.report.try_read(&mut status) {
                Ok(4) => return Some(ExitStatus::from_raw(i32::from_le_bytes(status))),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return None,
            }
        }
    }

    fn end_all_but(&self, supervisor: Option<Pid>, keepers: &[Pid]) {
        let root = self.bubblewrap.as_raw().cast_unsigned();
        if keepers.is_empty() {
            return match &self.group {
                Some(group) => group.kill(),
                None => kill_tree(root),
            };
        }
        // What the keepers need to live: bubblewrap, the first process inside, and the supervisor.
        let frame = [
            Some(self.bubblewrap),
            supervisor.and_then(processes::parent_of),
            supervisor,
        ];
        let spared = frame.into_iter().flatten().chain(keepers.iter().copied());
        let spared: Vec<u32> = spared
            .map(|process| process.as_raw().cast_unsigned())
            .collect();
        kill_tree_but(root, &spared);
    }
}

impl Life {
    pub(super) fn new(child: Child, report: Option<UnixStream>, group: Option<Group>) -> Self {
        match report {
            None => Self::Bare(child),
            Some(report) => Self::Sandboxed {
                walls: Walls::new(child, report, group),
                supervisor: None,
                status: None,
                carrier: None,
            },
        }
    }

    pub(super) fn has_network(&mut self, network: Option<Carrier>) {
        if let Self::Sandboxed { carrier, .. } = self {
            *carrier = network;
        }
    }

    pub(super) fn has_kernel(&mut self, kernel: Pid) {
        if let Self::Sandboxed { supervisor, .. } = self {
            *supervisor = processes::parent_of(kernel);
        }
    }

    /// How the kernel ended; `None` when nothing says so. Cancel safe, and may be asked again.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Bare(child) => child.wait().await.ok(),
            Self::Sandboxed { walls, status, .. } => match status {
                Some(status) => *status,
                None => *status.insert(walls.kernel_ended().await),
            },
        }
    }

    pub(super) fn group(&self) -> Option<&Group> {
        self.walls()?.group.as_ref()
    }

    pub(super) fn walls(&self) -> Option<&Arc<Walls>> {
        match self {
            Self::Bare(_) => None,
            Self::Sandboxed { walls, .. } => Some(walls),
        }
    }

    pub(super) fn end_all(&self, kernel: Pid, mark: &str, keepers: &[Pid]) {
        match self {
            Self::Bare(_) => processes::end_all(kernel, mark, keepers),
            Self::Sandboxed {
                walls, supervisor, ..
            } => walls.end_all_but(*supervisor, keepers),
        }
    }
}
