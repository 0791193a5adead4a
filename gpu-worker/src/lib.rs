//! The worker: it runs sessions on a machine with GPUs, or with a processor only.
//!
//! In: assignments from the broker. Out: numbered events, and the changes of cells. One loop, the agent, communicates
//! with the broker. One task for each notebook owns the notebook's session, an IPython kernel.
//!
//! ```text
//! broker <── line ── agent ───jobs───> notebook ── job ──> session ──> python -m baton_shim.session.start
//!                      ^───────────────reports─────────────┘
//! ```
//!
//! **Invariant:** the worker never decodes a pickle stream, and no session outlives it.

mod agent;
mod batch;
mod calls;
mod context;
mod deadline;
mod device;
mod disk;
mod environments;
mod fitting;
pub mod gpu;
mod host_memory;
mod job;
mod life_end;
mod link;
mod messages;
mod mirror;
mod notebook;
mod packages;
mod preparation;
mod processes;
mod questions;
mod report;
mod sandbox;
mod session;
mod status;
mod stop;
mod transfer;

use crate::{
    agent::{Agent, Announced},
    context::Context,
    environments::Environments,
    gpu::{CUDA_VISIBLE_DEVICES, GpuMode, MONITORING, Reading, Sharing},
    life_end::LifeEnd,
    sandbox::{Sandbox, SandboxError},
    session::{Ground, Zygotes},
    transfer::Access,
};
use anyhow::Context as _;
use baton_chunks::ChunkDirectory;
use baton_protocol::{Machine, WorkerId, shim::Hello};
use baton_transport::{ChunkClient, Dial, TransportChoice};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub use crate::environments::{EnvironmentConfig, EnvironmentSource};
pub use crate::mirror::FilesChoice;
pub use crate::sandbox::{NetworkChoice, SandboxChoice};
pub use crate::status::Status;
pub use crate::stop::Stop;

#[derive(Debug, Clone)]
pub struct Config {
    /// Identifies this process.
    pub id: WorkerId,
    pub dial: Dial,
    pub transport: TransportChoice,
    /// How long to keep trying to send results while the broker is away or cannot store them.
    pub patience: Duration,
    /// The worker's name for people; `None`: the name in its token, or else one that the broker chooses.
    pub name: Option<String>,
    /// Labels of the machine, which courses can require.
    pub labels: Vec<String>,
    /// When the worker's time on the machine ends; `None`: never.
    pub leaves_at: Option<SystemTime>,
    /// How many jobs run at once; `None`: as many as suit its GPUs.
    pub slots: Option<u32>,
    /// The Python of the sessions; `None`: that of each notebook, for a worker on the same machine.
    pub python: Option<PathBuf>,
    /// If `python` is `None`: the Python that notebooks probably use. Sessions of it are prepared in advance.
    pub usual_python: Option<PathBuf>,
    /// Environments that courses can require instead of `python`.
    pub environments: Vec<EnvironmentConfig>,
    /// The folder in which environments are built from locks.
    pub environments_folder: PathBuf,
    /// The folder for chunks that may be needed again.
    pub cache: PathBuf,
    pub cache_limit_bytes: u64,
    /// How long a session is kept without a cell.
    pub session_idle: Duration,
    /// How long without a cell until the worker stops; `None`: it does not stop.
    pub idle_exit: Option<Duration>,
    /// How much memory the processes of one session may use together; `None`: no limit.
    pub session_memory_bytes: Option<u64>,
    /// How much a session may store on the machine's disk; `None`: no limit.
    pub session_disk_bytes: Option<u64>,
    /// How many processes and threads a session in a sandbox may have.
    pub session_processes: u32,
    /// The time of how many processors a session in a sandbox may use; `None`: no limit.
    pub session_cpus: Option<u32>,
    /// The size of each private folder in memory of a session in bubblewrap's sandbox.
    pub session_scratch_bytes: u64,
    /// How long a cell that has not started waits for a notebook that gives no sign of preparing an answer, and for a
    /// session that copies a small deferred state.
    pub answer_patience: Duration,
    /// How long an interrupted cell may take to end before its session is ended.
    pub cancel_grace: Duration,
    /// How long running cells may continue after [`Stop::WhenCellsEnd`]; `None`: each until its own time limit.
    pub stop_grace: Option<Duration>,
    /// Which sessions get a mirror of the notebook's folder.
    pub files: FilesChoice,
    /// The folder for mirrors and for packages that cells install.
    pub mirrors: PathBuf,
    /// Whether cells may install packages, each for its own notebook.
    pub install_packages: bool,
    /// In a mirror: the size of each file that a cell may open, and the total size of the files that it may write.
    pub files_limit_bytes: u64,
    /// How sessions share a GPU, if there is one.
    pub gpu_mode: GpuMode,
    /// How much GPU memory one session may use; `None`: no limit.
    pub gpu_memory_bytes: Option<u64>,
    /// The program `baton`, whose hidden command tests time-sharing on a GPU; `None`: no test.
    pub baton: Option<PathBuf>,
    /// Names of variables that sessions inherit besides the usual ones; `*` at the end stands for any ending.
    pub session_environment: Vec<String>,
    /// How sessions are isolated.
    pub sandbox: SandboxChoice,
    /// The network of sessions in a sandbox.
    pub network: NetworkChoice,
    /// Whether sessions are forked from a process that has loaded Python libraries.
    pub warm_starts: bool,
    /// Libraries that this process loads besides those that sessions have used.
    pub preload: Vec<String>,
    /// What sandboxed sessions may read besides the system and their Python.
    pub readable: Vec<PathBuf>,
    /// The folder for the sessions' sockets; its path must be short.
    pub runtime_folder: PathBuf,
    /// Receives each change of the worker's status.
    pub status: watch::Sender<Status>,
}

/// Runs a worker until `stop` asks it to stop, and after that for as long as [`Stop`] allows. Call it from a thread
/// that lives as long as the process, because the system ends sessions with the thread that started them.
///
/// # Errors
/// If the worker cannot start, or has to stop.
pub async fn run(config: Config, mut stop: watch::Receiver<Stop>) -> anyhow::Result<()> {
    let access = open_access(&config)?;
    mirror::remove_leftovers(&config.mirrors);
    packages::remove_leftovers(&config.mirrors);
    let visible = std::env::var(CUDA_VISIBLE_DEVICES).ok();
    let reading = gpu::monitor(MONITORING.as_ref(), visible).await;
    let gpus = reading.borrow().clone();
    let devices = device::detect(&gpus);
    let end = config.leaves_at.map(LifeEnd::new);
    let announced = Announced {
        devices,
        machine: describe_machine(&config, gpus, end.as_ref()).await,
    };
    let sharing = share_gpus(&config, &reading).await?;
    let sandbox = open_sandbox(&config).await?;
    let slots = match config.slots {
        Some(slots) => slots.try_into().unwrap_or(Semaphore::MAX_PERMITS),
        None => sharing.slots(),
    };
    let zygotes = Zygotes::open(Ground {
        config: config.clone(),
        sandbox: sandbox.clone(),
        sharing: sharing.clone(),
    });
    if let (None, Some(python)) = (&config.python, &config.usual_python) {
        zygotes.begin_soon(python);
    }
    let environments = Arc::new(Environments::new(&config.environments));
    let context = Context {
        environments,
        access,
        config,
        slots,
        permits: Arc::new(Semaphore::new(slots)),
        stopping: CancellationToken::new(),
        end,
        sharing,
        sandbox,
        zygotes,
        reading,
    };
    let context = Arc::new(context);
    match agent::first_trial(&context, &mut stop).await {
        Some(failing) => Agent::run(context, announced, failing, stop).await,
        None => Ok(()),
    }
}

fn open_access(config: &Config) -> anyhow::Result<Access> {
    let cache = ChunkDirectory::open_cache(config.cache.clone(), config.cache_limit_bytes)
        .context("Failed to open the worker's cache")?;
    let chunk_client =
        ChunkClient::new(&config.dial).context("Failed to prepare the connection to the broker")?;
    Ok(Access {
        chunk_client: chunk_client.with_patience(config.patience),
        cache: Arc::new(cache),
        transport: config.transport,
        memory_limit_bytes: config.session_memory_bytes,
        patience: config.patience,
    })
}

async fn describe_machine(config: &Config, gpus: Reading, end: Option<&LifeEnd>) -> Machine {
    let session_gpu_memory = gpu::session_memory(config.gpu_mode, config.gpu_memory_bytes);
    Machine {
        memory_bytes: host_memory::total_bytes(),
        session_gpu_memory_bytes: session_gpu_memory.await.filter(|_| !gpus.gpus.is_empty()),
        driver: gpus.driver,
        labels: config.labels.clone(),
        environments: Vec::new(),
        leaves_at_ms: end.map(LifeEnd::cells_end_at_ms),
    }
}

async fn share_gpus(
    config: &Config,
    reading: &watch::Receiver<Reading>,
) -> anyhow::Result<Sharing> {
    let limits = gpu::Limits {
        gpu_bytes: config.gpu_memory_bytes,
        memory_bytes: config.session_memory_bytes,
    };
    let sharing = Sharing::open(
        config.gpu_mode,
        limits,
        reading,
        &config.runtime_folder,
        config.baton.as_deref(),
    );
    sharing.await.context("Failed to share the GPU")
}

/// Starts a sandbox for this Python, and a probe in it.
///
/// # Errors
/// If no sandbox starts, or if the probe reaches something outside. The message has a hint.
pub async fn try_the_sandbox(config: &Config, python: &Path) -> anyhow::Result<()> {
    Sandbox::open(config, Some(python)).await?;
    Ok(())
}

/// Starts a session with this Python as a worker would, lets it run a cell of its own, and ends it. The session does
/// not join time-sharing, because other programs may be using the GPU. Call this from a thread that lives until it
/// returns. Returns a warning if the session cannot use the machine's GPU.
///
/// # Errors
/// If the sandbox or the session does not start. The message is for the administrator.
pub async fn try_a_session(config: &Config, python: &Path) -> anyhow::Result<Option<String>> {
    let sandbox = open_sandbox(config).await?;
    let tried =
        context::try_a_session(config, python, &Sharing::Open, sandbox.as_deref(), None).await;
    let warning = |hello: Hello| hello.gpu_error.as_deref().map(messages::no_gpu_in_sessions);
    tried.map(warning).map_err(|error| {
        let (why, _) = error.explained();
        anyhow::anyhow!(why.trim_end().to_owned())
    })
}

async fn open_sandbox(config: &Config) -> Result<Option<Arc<Sandbox>>, SandboxError> {
    let sandbox = Sandbox::open(config, config.python.as_deref()).await?;
    for warning in sandbox.iter().flat_map(Sandbox::warnings) {
        tracing::warn!("{warning}");
    }
    Ok(sandbox.map(Arc::new))
}
