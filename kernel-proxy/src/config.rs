//! The proxy's configuration.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use baton_mirror::TrashLimits;
use baton_protocol::{JobKind, Priority};
use baton_transport::{Dial, MemoryHolder, TransportChoice};

use crate::kernel::ForkedKernel;
use crate::relay::Relay;

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
    /// A notebook kernel that has been forked already; without it, `python` starts one.
    pub forked: Option<ForkedKernel>,
    /// Everything else that the client said on the command line; it belongs to the kernel.
    pub kernel_arguments: Vec<OsString>,
    pub broker: BrokerChoice,
    /// The course that the notebook is for.
    pub course: Option<String>,
    /// Low for all cells, or for those that ask for it.
    pub priority: Priority,
    /// Which ways state may take to a worker.
    pub transport: TransportChoice,
    /// How long a cell, and what it made, wait for a broker that is away.
    pub patience: Duration,
    /// Whether libraries in the notebook kernel find a virtual GPU.
    pub virtual_cuda: bool,
    /// What cells deleted or replaced beside the notebook.
    pub trash: TrashConfig,
}

/// Where and how long files are kept that cells deleted or replaced.
#[derive(Debug, Clone, Default)]
pub struct TrashConfig {
    /// For notebooks beside which nothing can be written.
    pub state_folder: PathBuf,
    pub limits: TrashLimits,
}

/// Which broker `%%gpu` cells go to.
#[derive(Debug, Clone)]
pub enum BrokerChoice {
    /// One that somebody runs.
    Configured(Dial),
    /// That of this user on this machine, with its socket and its token in `runtime_folder`.
    OfThisUser {
        runtime_folder: PathBuf,
        /// Starts it, unless nothing may be started.
        start_command: Option<Vec<OsString>>,
    },
    /// None, because the configuration is wrong; this says what is. Ordinary cells run all the same.
    Misconfigured(String),
}

/// Who sees what remote cells show.
pub(crate) enum Audience {
    /// The notebook's clients.
    Clients(Relay),
    /// The program that runs them, which shows everything itself.
    Program {
        /// For people to read.
        name: String,
        /// What its jobs run.
        kind: Option<JobKind>,
    },
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
