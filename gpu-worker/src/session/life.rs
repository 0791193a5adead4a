//! The lifetime of a session's processes.
//!
//! In: the process that was started. Out: how the kernel ended, and signals that end the remaining processes.
//!
//! **Invariant:** a sandbox ends when the session and all of its keepers have ended, and everything inside ends with
//! it.

use crate::{
    processes,
    sandbox::{Carrier, Group, Occupied, Outermost, Scratch},
};
use baton_jupyter_wire::process::{kill_tree, kill_tree_but};
use nix::unistd::Pid;
use std::{
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, OnceLock},
};
use tokio::net::UnixStream;

pub(super) enum Life {
    /// The kernel is the worker's child.
    Bare(Outermost),
    /// The kernel is the child of a supervisor, because it is sandboxed, or forked from a zygote, or both.
    Supervised {
        enclosure: Arc<Enclosure>,
        /// How the kernel ended, once that is known.
        status: Option<Option<ExitStatus>>,
        /// Carries the session's network connections. It ends with the session, because keepers need no network.
        carrier: Option<Carrier>,
    },
}

/// What surrounds a kernel. Session and keepers share it; when the last of them drops it, the supervisor and the
/// sandbox end. The system then ends all processes of the sandbox's process namespace.
#[derive(Debug)]
pub(super) struct Enclosure {
    around: Around,
    /// Set once the kernel is known.
    supervisor: OnceLock<Pid>,
    /// On this connection the supervisor reports how the kernel ended. The supervisor lives until the connection
    /// closes.
    report: UnixStream,
    /// When this is dropped, all remaining processes of the group are killed.
    group: Option<Group>,
}

#[derive(Debug)]
enum Around {
    /// Nothing: a fork without a sandbox.
    Nothing,
    Sandbox(Sandbox),
    /// The kernel has confined itself with Landlock. Its orphans become children of the supervisor.
    Confined {
        /// The supervisor; `None` if it is a fork.
        _outermost: Option<Outermost>,
        scratch: Scratch,
    },
}

#[derive(Debug)]
struct Sandbox {
    bubblewrap: Pid,
    /// Bubblewrap's command, if the session is a fork that has entered the sandbox.
    holder: Option<Pid>,
    /// Killed when dropped.
    _outermost: Outermost,
}

impl Enclosure {
    fn new(around: Around, report: UnixStream, group: Option<Group>) -> Arc<Self> {
        Arc::new(Self {
            around,
            supervisor: OnceLock::new(),
            report,
            group,
        })
    }

    fn sandbox(&self) -> Option<&Sandbox> {
        match &self.around {
            Around::Sandbox(sandbox) => Some(sandbox),
            Around::Nothing | Around::Confined { .. } => None,
        }
    }

    pub(super) fn supervisor(&self) -> Option<Pid> {
        self.supervisor.get().copied()
    }

    fn roots(&self) -> impl Iterator<Item = Pid> {
        let bubblewrap = self.sandbox().map(|sandbox| sandbox.bubblewrap);
        [bubblewrap, self.supervisor()].into_iter().flatten()
    }

    /// Translates a process id inside the sandbox into one in the worker's namespace.
    pub(super) fn process(&self, inside: Pid) -> Option<Pid> {
        let mut processes = self.roots().flat_map(processes::below);
        processes.find(|process| processes::innermost_number(*process) == Some(inside))
    }

    /// Notes which process is the kernel. If memory runs out, the system ends the kernel and what it has started before
    /// all others, and together.
    fn has_kernel(self: &Arc<Self>, kernel: Pid) {
        let Some(supervisor) = processes::parent_of(kernel) else {
            return;
        };
        // This is the only place that sets it, and a session has one kernel.
        let _ = self.supervisor.set(supervisor);
        processes::end_first(kernel);
        if let Some(group) = &self.group {
            let mut others = group.entered();
            others.retain(|process| *process != kernel);
            self.keep_in_group(others);
        }
    }

    /// Lets a keeper outlive the kernel from which it was forked, also if memory runs out.
    pub(super) fn keep(self: &Arc<Self>, keeper: Pid) {
        if let Some(supervisor) = self.supervisor() {
            processes::end_as_late_as(supervisor, keeper);
        }
        self.keep_in_group(vec![keeper]);
    }

    /// Moves processes into the part of the group that outlives the kernel. The system takes some milliseconds for
    /// this, so it happens in the background and delays no cell.
    fn keep_in_group(self: &Arc<Self>, processes: Vec<Pid>) {
        if processes.is_empty() {
            return;
        }
        let enclosure = self.clone();
        tokio::task::spawn_blocking(move || {
            let kept = enclosure.group.as_ref().map(|group| group.keep(&processes));
            if let Some(Err(error)) = kept {
                tracing::warn!(%error, "Processes that a cell started will be killed if their session exceeds its memory limit");
            }
        });
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

    fn end_all_but(&self, kernel: Pid, mark: &str, keepers: &[Pid]) {
        let supervisor = self.supervisor();
        let mut spared: Vec<Pid> = keepers.to_vec();
        if !keepers.is_empty() {
            spared.extend(supervisor);
        }
        let Some(sandbox) = self.sandbox() else {
            if let (Around::Confined { .. }, Some(supervisor)) = (&self.around, supervisor) {
                processes::end_below(supervisor, &spared);
                match &self.group {
                    Some(group) if keepers.is_empty() => group.kill(),
                    _ => {}
                }
            }
            return processes::end_all(kernel, mark, &spared);
        };
        let root = sandbox.bubblewrap.as_raw().cast_unsigned();
        if keepers.is_empty() {
            return match &self.group {
                Some(group) => group.kill(),
                None => kill_tree(root),
            };
        }
        // The keepers would end without these processes: bubblewrap, the first process inside, and the supervisor or
        // the holder.
        let inside = sandbox.holder.or(supervisor);
        let frame = [
            Some(sandbox.bubblewrap),
            inside.and_then(processes::parent_of),
            inside,
        ];
        spared.extend(frame.into_iter().flatten());
        let spared: Vec<u32> = spared
            .iter()
            .map(|process| process.as_raw().cast_unsigned())
            .collect();
        kill_tree_but(root, &spared);
        if let (Some(supervisor), Some(_)) = (supervisor, sandbox.holder) {
            kill_tree_but(supervisor.as_raw().cast_unsigned(), &spared);
        }
    }
}

impl Sandbox {
    fn new(outermost: Outermost, holder: Option<Pid>) -> Self {
        Self {
            bubblewrap: outermost.process().unwrap_or(Pid::from_raw(0)),
            holder,
            _outermost: outermost,
        }
    }
}

impl Life {
    pub(super) fn bare(kernel: Outermost) -> Self {
        Self::Bare(kernel)
    }

    /// In a sandbox whose command is the supervisor.
    pub(super) fn inside(outermost: Outermost, report: UnixStream, group: Option<Group>) -> Self {
        let sandbox = Sandbox::new(outermost, None);
        Self::supervised(Around::Sandbox(sandbox), report, group)
    }

    /// In a sandbox whose command is `holder`, and which the supervisor has entered.
    pub(super) fn entered(occupied: Occupied, holder: Pid, report: UnixStream) -> Self {
        let Occupied {
            outermost,
            group,
            carrier,
        } = occupied;
        let sandbox = Sandbox::new(outermost, Some(holder));
        let mut life = Self::supervised(Around::Sandbox(sandbox), report, group);
        life.has_network(carrier);
        life
    }

    /// A fork without a sandbox.
    pub(super) fn forked(report: UnixStream) -> Self {
        Self::supervised(Around::Nothing, report, None)
    }

    /// A kernel that confines itself with Landlock. `outermost`: the supervisor, unless it is a fork.
    pub(super) fn confined(
        outermost: Option<Outermost>,
        report: UnixStream,
        group: Option<Group>,
        scratch: Scratch,
    ) -> Self {
        let around = Around::Confined {
            _outermost: outermost,
            scratch,
        };
        Self::supervised(around, report, group)
    }

    fn supervised(around: Around, report: UnixStream, group: Option<Group>) -> Self {
        Self::Supervised {
            enclosure: Enclosure::new(around, report, group),
            status: None,
            carrier: None,
        }
    }

    pub(super) fn has_network(&mut self, network: Option<Carrier>) {
        if let Self::Supervised { carrier, .. } = self {
            *carrier = network;
        }
    }

    pub(super) fn has_kernel(&self, kernel: Pid) {
        match self {
            Self::Bare(_) => processes::end_first(kernel),
            Self::Supervised { enclosure, .. } => enclosure.has_kernel(kernel),
        }
    }

    /// Waits for the end of the kernel. Returns how it ended, or `None` if that is unknown. Cancel safe; may be called
    /// again after the end.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Bare(kernel) => kernel.child().wait().await.ok(),
            Self::Supervised {
                enclosure, status, ..
            } => match status {
                Some(status) => *status,
                None => *status.insert(enclosure.kernel_ended().await),
            },
        }
    }

    /// All processes of the session are descendants of these, or one of them.
    pub(super) fn roots(&self, kernel: Pid) -> Vec<Pid> {
        match self {
            Self::Bare(_) => vec![kernel],
            Self::Supervised { enclosure, .. } => enclosure.roots().collect(),
        }
    }

    pub(super) fn group(&self) -> Option<&Group> {
        self.enclosure()?.group.as_ref()
    }

    /// Folders of the session's own that are on the machine's disk.
    pub(super) fn scratch(&self) -> Vec<PathBuf> {
        match self.enclosure().map(|enclosure| &enclosure.around) {
            Some(Around::Confined { scratch, .. }) => scratch.writable().into(),
            _ => Vec::new(),
        }
    }

    pub(super) fn enclosure(&self) -> Option<&Arc<Enclosure>> {
        match self {
            Self::Bare(_) => None,
            Self::Supervised { enclosure, .. } => Some(enclosure),
        }
    }

    pub(super) fn end_all(&self, kernel: Pid, mark: &str, keepers: &[Pid]) {
        match self {
            Self::Bare(_) => processes::end_all(kernel, mark, keepers),
            Self::Supervised { enclosure, .. } => enclosure.end_all_but(kernel, mark, keepers),
        }
    }
}
