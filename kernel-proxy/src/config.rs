//! The proxy's configuration.

use crate::{kernel::ForkedKernel, relay::Relay};
use baton_mirror::TrashLimits;
use baton_protocol::{JobKind, Priority};
use baton_transport::{Dial, MemoryHolder, TransportChoice};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// The Python module that starts the notebook kernel with the shim loaded.
pub const LAUNCHER_MODULE: &str = "baton_shim.notebook.start";

/// Turns the shim's virtual GPU off.
pub(crate) const NO_VIRTUAL_CUDA: (&str, &str) = ("BATON_VIRTUAL_CUDA", "0");

#[derive(Debug, Clone)]
pub struct Config {
    /// The file that the Jupyter client wrote.
    pub connection_file: PathBuf,
    pub python: PathBuf,
    /// [`LAUNCHER_MODULE`], or another module that starts a kernel when it is run with `-f FILE`.
    pub launcher_module: String,
    /// A notebook kernel that has already been forked. Without one, `python` starts the kernel.
    pub forked: Option<ForkedKernel>,
    /// All other arguments of the client's command line, which are meant for the kernel.
    pub kernel_arguments: Vec<OsString>,
    pub broker: BrokerChoice,
    /// The course that the notebook is for.
    pub course: Option<String>,
    /// Low for all cells, or as each cell asks.
    pub priority: Priority,
    /// The transports that state may use to reach a worker.
    pub transport: TransportChoice,
    /// How long a cell and its result wait for a broker that is unreachable.
    pub patience: Duration,
    /// Whether libraries in the notebook kernel find a virtual GPU.
    pub virtual_cuda: bool,
    /// How to keep files that cells deleted or replaced in the notebook's folder.
    pub trash: TrashConfig,
}

/// Where, and for how long, to keep files that cells deleted or replaced.
#[derive(Debug, Clone, Default)]
pub struct TrashConfig {
    /// Used for notebooks in folders that are not writable.
    pub state_folder: PathBuf,
    pub limits: TrashLimits,
}

/// Which broker runs the `%%gpu` cells.
#[derive(Debug, Clone)]
pub enum BrokerChoice {
    /// The broker at a configured address.
    Configured(Dial),
    /// This user's own broker on this machine; its socket and token are in `runtime_folder`.
    OfThisUser {
        runtime_folder: PathBuf,
        /// The command that starts it, unless nothing may be started.
        start_command: Option<Vec<OsString>>,
    },
    /// No broker, because the configuration is wrong, as this text explains. Ordinary cells run all the same.
    Misconfigured(String),
}

/// Who sees the output of remote cells.
pub(crate) enum Audience {
    /// The notebook's clients.
    Clients(Relay),
    /// The program that runs the cells, which shows all output itself.
    Program {
        /// Shown to people.
        name: String,
        /// The kind of its jobs.
        kind: Option<JobKind>,
    },
}

impl Audience {
    /// The kind of all jobs, if it is the same for all.
    pub(crate) fn kind_of_jobs(&self) -> Option<JobKind> {
        match self {
            Self::Clients(_) => None,
            Self::Program { kind, .. } => *kind,
        }
    }
}

/// What `%%gpu` cells need.
pub(crate) struct RemoteConfig {
    pub(crate) audience: Audience,
    pub(crate) broker: BrokerChoice,
    pub(crate) course: Option<String>,
    pub(crate) priority: Priority,
    pub(crate) trash: TrashConfig,
    /// Where workers on this machine may fetch state; `None` if all state goes through the broker.
    pub(crate) memory: Option<MemoryHolder>,
    pub(crate) kernel_pid: u32,
    /// How long a cell and its result wait for a broker that is unreachable.
    pub(crate) patience: Duration,
}
