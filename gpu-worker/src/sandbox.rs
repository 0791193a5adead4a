//! Isolates sessions from each other and from the machine: with bubblewrap, or with Landlock if the system allows no
//! user namespaces.
//!
//! In: a command that starts a session, and the files that it needs. Out: the same command in a control group of its
//! own, without capabilities, with a read-only system, and with the network that the administrator allows.
//! [`Bubblewrap`] hides all other files; [`Landlock`] refuses to open them.
//!
//! **Invariant:** a session can read a file of the machine only if [`View`](view::View) or the administrator names it.

mod bubblewrap;
mod build;
mod confinement;
mod devices;
mod egress;
mod filter;
mod groups;
mod guard;
mod holder;
mod image;
mod outermost;
mod prepared;
mod probe;
mod python;
mod scratch;
mod sys;
mod view;

use self::groups::{Controller, Groups};
use crate::{Config, gpu::Hardware};
use baton_mirror::Root;
use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};
use tokio::process::Command;

pub(crate) use self::bubblewrap::{Bubblewrap, Inside};
pub(crate) use self::build::{install, install_bare};
pub(crate) use self::confinement::{Confined, Landlock};
pub(crate) use self::egress::{Carrier, Gate};
pub(crate) use self::groups::{Group, Share};
pub(crate) use self::guard::{Guard, guarded, without_guard};
pub(crate) use self::holder::{Entrance, Holder, ReadOnly};
pub(crate) use self::image::Image;
pub(crate) use self::outermost::Outermost;
pub(crate) use self::prepared::{Occupied, PreparedSandbox};
pub(crate) use self::probe::{PROGRAM as PROBE, Probe};
pub(crate) use self::scratch::Scratch;
pub(crate) use self::sys::{ignore_sigterm, inherit, join};

/// How a worker isolates its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxChoice {
    /// Each session has namespaces of its own. The worker does not start without the program `bwrap`.
    Bubblewrap,
    /// Sessions stay in the machine's namespaces, and Landlock refuses access to what is not theirs.
    Landlock,
    /// Sessions can do what the worker's user can do.
    None,
}

/// Which network sessions can use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkChoice {
    /// None. With bubblewrap each session has its own loopback interface; with Landlock it has none.
    #[default]
    None,
    /// Connections to the internet, but not to private addresses, this machine or the broker.
    Egress,
    /// The machine's network.
    Host,
}

/// What one session may use of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: Option<u64>,
    /// Includes threads.
    pub(crate) processes: u32,
    pub(crate) processors: Option<u32>,
    /// The size of each private folder in memory (`/tmp`, `/var/tmp`, `/dev/shm`, the home, caches). Landlock has no
    /// such limit.
    pub(crate) scratch_bytes: u64,
}

impl Limits {
    fn of(config: &Config) -> Self {
        Self {
            memory_bytes: config.session_memory_bytes,
            processes: config.session_processes,
            processors: config.session_cpus,
            scratch_bytes: config.session_scratch_bytes,
        }
    }

    /// Has the session's supervisor limit its processes, if no control group does.
    fn set_process_limit(&self, command: &mut Command, groups: &Groups) {
        if !groups.has(Controller::Processes) {
            command.env(PROCESS_LIMIT, self.processes.to_string());
        }
    }
}

/// The variable that says how the session's first process confines itself (`session/confinement.py`). Under Landlock it
/// contains the descriptors of the rules and of the filter, and the session's folder. In a sandbox of bubblewrap its
/// value is that of [`INSIDE`].
const CONFINEMENT: &str = "BATON_CONFINEMENT";
pub(crate) const INSIDE: (&str, &str) = (CONFINEMENT, "inside");

/// Values of `worker.sandbox`.
const BUBBLEWRAP: &str = "bubblewrap";
const LANDLOCK: &str = "landlock";

/// The variable with the largest number of processes and threads, if no control group limits them. The supervisor sets
/// this limit.
const PROCESS_LIMIT: &str = "BATON_PROCESS_LIMIT";

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error(
        "worker.sandbox is bubblewrap, and the program bwrap is missing\n\
         hint: install bubblewrap 0.10 or later, or 0.8 with your distribution's fixes (`apt-get install \
         bubblewrap`); or set worker.sandbox = \"none\", if all people who use this worker may read each other's data"
    )]
    Missing,
    #[error(
        "worker.sandbox is bubblewrap, and bwrap cannot start a sandbox here: {said}\n\
         hint: the system must allow user namespaces (see docs/guides/operators.md, \"Sandbox\"); where it cannot, \
         worker.sandbox = \"landlock\" keeps people's files, variables and processes apart without them, but cells see \
         the machine's processes and the names of files (docs/security.md lists what they reach); or set \
         worker.sandbox = \"none\", if all people who use this worker may read each other's data"
    )]
    Fails { said: String },
    #[error(
        "worker.sandbox is landlock, and this system ({kernel}) cannot keep sessions apart with it: {missing}\n\
         hint: use a newer kernel, or one on which Landlock is enabled (`lsm=landlock,...` on its command line); or \
         worker.sandbox = \"bubblewrap\", if the system allows user namespaces"
    )]
    NoLandlock { kernel: String, missing: String },
    #[error(
        "worker.sandbox is landlock, and no session starts in it: {said}\n\
         hint: `baton doctor` tries it; where user namespaces are allowed, use worker.sandbox = \"bubblewrap\""
    )]
    NotConfined { said: String },
    #[error(
        "worker.network is egress, which needs bubblewrap, and worker.sandbox is landlock\n\
         hint: set worker.network = \"none\"; or \"host\", if cells may reach all that this machine reaches"
    )]
    EgressNeedsBubblewrap,
    #[error(
        "worker.sandbox is landlock, which cannot hide {hidden} of the worker inside of the notebook's folder {folder}\n\
         hint: set worker.files = \"mirror\""
    )]
    CannotHide { hidden: PathBuf, folder: PathBuf },
    #[error("The notebook's folder {folder} was replaced by another one while the session started")]
    Replaced { folder: PathBuf },
    #[error(
        "An image needs worker.sandbox = \"bubblewrap\", and here it is landlock\n\
         hint: name an installed Python instead"
    )]
    ImageNeedsBubblewrap,
    #[error(
        "worker.sandbox is {sandbox}, and no Python of the worker's own is set\nhint: set worker.python"
    )]
    NoPython { sandbox: &'static str },
    #[error(
        "worker.sandbox is {sandbox}, and it does not isolate sessions here. A probe inside reached: {reached}\n\
         hint: check worker.readable, worker.network and what the machine allows, or report it as a vulnerability"
    )]
    Leaks {
        sandbox: &'static str,
        reached: String,
    },
    #[error(
        "worker.network is egress, and the program {name} is missing\n\
         hint: install slirp4netns and iproute2 (`apt-get install slirp4netns iproute2`), or set worker.network = \"none\""
    )]
    NoEgress { name: &'static str },
    #[error(
        "worker.network is egress, and slirp4netns does not work here: {said}\n\
         hint: it needs /dev/net/tun; or set worker.network = \"none\""
    )]
    Egress { said: String },
    #[error("{python} does not say where its packages are: {said}")]
    Python { python: PathBuf, said: String },
    #[error("Failed to prepare the sandbox")]
    Io(#[from] io::Error),
}

/// What a session needs of the machine.
pub(crate) struct Needs<'a> {
    pub(crate) python: &'a Path,
    /// The folder with this session's sockets and libraries.
    pub(crate) private_folder: &'a Path,
    /// The notebook's folder, if this machine can access it.
    pub(crate) notebook_folder: Option<&'a Root>,
    /// `None`: all GPUs.
    pub(crate) hardware: Option<&'a Hardware>,
    /// The folder for packages that its cells install.
    pub(crate) packages: &'a Path,
    /// The mirror's folder, and the path at which the session is to find it.
    pub(crate) mirror: Option<(PathBuf, PathBuf)>,
    /// The worker's own folders, which must stay hidden even if they are in a writable folder.
    pub(crate) hidden: [&'a Path; 3],
}

/// The worker's part of a session's sandbox.
#[derive(Debug)]
pub(crate) struct Wrapped {
    /// `None` if this worker may not create control groups.
    pub(crate) group: Option<Group>,
    /// Holds the sandbox back until it has a network.
    pub(crate) gate: Option<Gate>,
}

#[derive(Debug)]
pub(crate) enum Sandbox {
    Bubblewrap(Bubblewrap),
    Landlock(Landlock),
}

impl Sandbox {
    /// Opens the sandbox that the configuration names; `None` if it names none.
    ///
    /// # Errors
    /// If the sandbox does not start, or a probe inside reaches something outside.
    pub(crate) async fn open(
        config: &Config,
        python: Option<&Path>,
    ) -> Result<Option<Self>, SandboxError> {
        let name = match config.sandbox {
            SandboxChoice::None => return Ok(None),
            SandboxChoice::Bubblewrap => BUBBLEWRAP,
            SandboxChoice::Landlock => LANDLOCK,
        };
        // The worker runs this Python outside the sandbox, too, so a notebook may not choose it.
        let python = python.ok_or(SandboxError::NoPython { sandbox: name })?;
        let sandbox = match config.sandbox {
            SandboxChoice::Landlock => Self::Landlock(Landlock::open(config)?),
            _ => Self::Bubblewrap(Bubblewrap::open(config)?),
        };
        probe::run(&sandbox, python, &config.runtime_folder).await?;
        Ok(Some(sandbox))
    }

    /// What the administrator should know about this sandbox, with hints.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let (loud, groups) = match self {
            Self::Bubblewrap(bubblewrap) => (None, bubblewrap.groups()),
            Self::Landlock(landlock) => (Some(confinement::WARNING.to_owned()), landlock.groups()),
        };
        loud.into_iter()
            .chain(unlimited(&groups.unlimited()))
            .collect()
    }

    /// The program to start instead of this Python.
    pub(crate) fn program<'a>(&'a self, python: &'a Path) -> &'a Path {
        match self {
            Self::Bubblewrap(bubblewrap) => bubblewrap.program(),
            Self::Landlock(_) => python,
        }
    }

    pub(crate) fn is_of_image(&self, python: &Path) -> bool {
        match self {
            Self::Bubblewrap(bubblewrap) => bubblewrap.is_of_image(python),
            Self::Landlock(_) => false,
        }
    }

    /// From now on, sessions whose Python is in this image see the image's system.
    ///
    /// # Errors
    /// If no sandbox starts with the image, or a probe inside reaches something outside; under Landlock always.
    pub(crate) async fn add_image(
        &self,
        config: &Config,
        image: Image,
        python: &Path,
    ) -> Result<(), SandboxError> {
        let Self::Bubblewrap(bubblewrap) = self else {
            return Err(SandboxError::ImageNeedsBubblewrap);
        };
        bubblewrap.add_image(image);
        probe::run(self, python, &config.runtime_folder).await
    }
}

/// A warning about resources that no control group limits, with a hint.
fn unlimited(unlimited: &[Controller]) -> Option<String> {
    let names: Vec<_> = unlimited.iter().map(ToString::to_string).collect();
    let mut said = format!(
        "No control group limits what sessions use here: {}.",
        names.join(", ")
    );
    if unlimited.contains(&Controller::Memory) {
        said += " Baton stops a cell only some time after it has exceeded worker.session_memory.";
    }
    if unlimited.contains(&Controller::Processes) {
        said += " The user's own limit of processes (RLIMIT_NPROC) takes their place, which does not bind root.";
    }
    let hint = "let the worker make control groups: `Delegate=yes` in its systemd unit, as in deploy/systemd";
    let _ = write!(said, "\nhint: {hint}");
    (!unlimited.is_empty()).then_some(said)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/usr/local/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(program))
        .find(|file| fs::metadata(file).is_ok_and(|found| found.is_file()))
}

/// One variable in the environment of a command; `None` if the command removes it.
type Variable<'a> = (&'a OsStr, Option<&'a OsStr>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_says_what_it_cannot_limit_and_how_it_could() {
        assert_eq!(unlimited(&[]), None);
        let said = unlimited(&[Controller::Memory, Controller::Processes]).unwrap_or_default();
        let expected = "No control group limits what sessions use here: memory, processes. \
            Baton stops a cell only some time after it has exceeded worker.session_memory. \
            The user's own limit of processes (RLIMIT_NPROC) takes their place, which does not bind root.\n\
            hint: let the worker make control groups: `Delegate=yes` in its systemd unit, as in deploy/systemd";
        assert_eq!(said, expected);
    }
}
