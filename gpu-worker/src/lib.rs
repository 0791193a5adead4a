//! The worker: the agent that runs sessions on a machine with GPUs, or with a processor only.
//!
//! In: assignments from the broker. Out: numbered events, and what the cells changed. One task for each notebook has
//! its session, an IPython kernel of its own; one loop, the agent, talks with the broker.
//!
//! ```text
//! broker <── line ── agent ──orders──> notebook ── job ──> session ──> python -m baton_shim.session.start
//!                      ^───────────────reports─────────────┘
//! ```
//!
//! **Invariant:** nothing here looks inside a pickle stream, and no session outlives the worker.

mod agent;
mod batch;
mod calls;
mod context;
mod device;
mod environments;
pub mod gpu;
mod host_memory;
mod job;
mod life_end;
mod line;
mod messages;
mod mirror;
mod notebook;
mod outbox;
mod packages;
mod preparation;
mod processes;
mod report;
mod sandbox;
mod session;
mod status;
mod stop;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use baton_chunks::ChunkDirectory;
use baton_protocol::{Machine, WorkerId};
use baton_transport::{ChunkClient, Dial, TransportChoice};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::context::Context;
use crate::environments::Environments;
pub use crate::environments::{EnvironmentConfig, EnvironmentSource};
use crate::gpu::{CUDA_VISIBLE_DEVICES, GpuMode, MONITORING, Sharing};
use crate::life_end::LifeEnd;
pub use crate::mirror::FilesChoice;
pub use crate::sandbox::{NetworkChoice, SandboxChoice};
use crate::sandbox::{Sandbox, SandboxError};
use crate::session::{Ground, Zygotes};
pub use crate::status::Status;
pub use crate::stop::Stop;
use crate::transfer::Access;

#[derive(Debug, Clone)]
pub struct Config {
    /// Stands for this process.
    pub id: WorkerId,
    pub dial: Dial,
    pub transport: TransportChoice,
    /// How long what a cell made waits for a broker that is away or cannot store.
    pub patience: Duration,
    /// How people call this worker; `None`: as its token says, or else as the broker likes.
    pub name: Option<String>,
    /// What its administrator calls the machine, for courses that require it.
    pub labels: Vec<String>,
    /// When its time on the machine is over.
    pub leaves_at: Option<SystemTime>,
    /// How many jobs run at once; `None`: as many as its GPUs are good for.
    pub slots: Option<u32>,
    /// The Python of the sessions; `None`: that of each notebook, for a worker on the same machine.
    pub python: Option<PathBuf>,
    /// The Python that notebooks probably have, where it is theirs: sessions of it are prepared in advance.
    pub usual_python: Option<PathBuf>,
    /// What courses can require of it instead of that Python.
    pub environments: Vec<EnvironmentConfig>,
    /// Where environments are built from locks.
    pub environments_folder: PathBuf,
    /// Where chunks are kept that may be wanted again.
    pub cache: PathBuf,
    pub cache_limit_bytes: u64,
    /// How long a session is kept without a cell.
    pub session_idle: Duration,
    /// After how long without a cell the worker leaves.
    pub idle_exit: Option<Duration>,
    /// How much memory the processes of one session may hold together.
    pub session_memory_bytes: Option<u64>,
    /// How many processes and threads a session in a sandbox may have.
    pub session_processes: u32,
    /// How many processors' time a session in a sandbox may use.
    pub session_cpus: Option<u32>,
    /// How much a session in a sandbox may store in each of its private folders in memory.
    pub session_scratch_bytes: u64,
    /// How long an interrupted cell may take to end before its session is ended.
    pub cancel_grace: Duration,
    /// How long running cells may go on after [`Stop::WhenCellsEnd`]; `None`: each until its own time limit.
    pub stop_grace: Option<Duration>,
    pub files: FilesChoice,
    /// Where folders of notebooks are mirrored that cannot be seen from here, and where packages are that cells install.
    pub mirrors: PathBuf,
    /// Whether cells may install packages, each for its own notebook.
    pub install_packages: bool,
    /// How much a cell may bring home in files.
    pub files_limit_bytes: u64,
    /// How sessions share a GPU, where there is one.
    pub gpu_mode: GpuMode,
    /// How much of its memory one session may have.
    pub gpu_memory_bytes: Option<u64>,
    /// The program `baton`, with whose hidden command time-sharing is tried on a GPU; `None`: it is not tried.
    pub baton: Option<PathBuf>,
    /// Names of variables that sessions inherit of this process's environment besides the usual ones; `*` stands for
    /// any ending.
    pub session_environment: Vec<String>,
    pub sandbox: SandboxChoice,
    /// Of sessions in a sandbox.
    pub network: NetworkChoice,
    /// Whether sessions are forked of a process that has loaded Python's libraries.
    pub warm_starts: bool,
    /// Libraries that this process loads besides those that sessions were seen to use.
    pub preload: Vec<String>,
    /// What sandboxed sessions may read besides the system and their Python.
    pub readable: Vec<PathBuf>,
    /// Where the sessions' sockets lie; its path must be short.
    pub runtime_folder: PathBuf,
    /// Told whenever it changes.
    pub status: watch::Sender<Status>,
}

/// Runs until it is asked to stop, and as long as [`Stop`] says after that. Call it from a thread that lives as long as
/// the process: the system ends sessions with the thread that started them.
pub async fn run(config: Config, mut stop: watch::Receiver<Stop>) -> anyhow::Result<()> {
    let cache = ChunkDirectory::open_cache(config.cache.clone(), config.cache_limit_bytes)
        .context("Failed to open the worker's cache")?;
    mirror::remove_leftovers(&config.mirrors);
    packages::remove_leftovers(&config.mirrors);
    let chunk_client =
        ChunkClient::new(&config.dial).context("Failed to prepare the connection to the broker")?;
    let chunk_client = chunk_client.with_patience(config.patience);
    let visible = std::env::var(CUDA_VISIBLE_DEVICES).ok();
    let reading = gpu::monitor(MONITORING.as_ref(), visible).await;
    let gpus = reading.borrow().clone();
    let devices = device::detect(&gpus);
    let end = config.leaves_at.map(LifeEnd::new);
    let session_gpu_memory = gpu::session_memory(config.gpu_mode, config.gpu_memory_bytes);
    let machine = Machine {
        memory_bytes: host_memory::memory().total_bytes,
        session_gpu_memory_bytes: session_gpu_memory.await.filter(|_| !gpus.gpus.is_empty()),
        driver: gpus.driver,
        labels: config.labels.clone(),
        environments: Vec::new(),
        leaves_at_ms: end.as_ref().map(LifeEnd::cells_end_at_ms),
    };
    let limits = gpu::Limits {
        gpu_bytes: config.gpu_memory_bytes,
        memory_bytes: config.session_memory_bytes,
    };
    let sharing = Sharing::open(
        config.gpu_mode,
        limits,
        &reading,
        &config.runtime_folder,
        config.baton.as_deref(),
    );
    let sharing = sharing.await.context("Failed to share the GPU")?;
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
        access: Access {
            chunk_client,
            cache: Arc::new(cache),
            transport: config.transport,
            memory_limit_bytes: config.session_memory_bytes,
        },
        config,
        slots,
        permits: Arc::new(Semaphore::new(slots)),
        stopping: CancellationToken::new(),
        end,
        connections: watch::Sender::default(),
        sharing,
        sandbox,
        zygotes,
        reading,
    };
    let context = Arc::new(context);
    match agent::first_trial(&context, &mut stop).await {
        Some(failing) => Agent::run(context, (devices, machine), failing, stop).await,
        None => Ok(()),
    }
}

/// Starts a sandbox for this Python, and a probe in it.
///
/// # Errors
/// If no sandbox starts, or if the probe reaches something outside. The message has a hint.
pub async fn try_the_sandbox(config: &Config, python: &Path) -> anyhow::Result<()> {
    Sandbox::open(config, Some(python)).await?;
    Ok(())
}

/// Starts a session of this Python as a worker does, but off the GPU, which others may be using; lets it run a cell of
/// its own, and ends it. Call it from a thread that lives until it is done.
pub async fn try_a_session(config: &Config, python: &Path) -> anyhow::Result<()> {
    let sandbox = open_sandbox(config).await?;
    let tried =
        context::try_a_session(config, python, &Sharing::Open, sandbox.as_deref(), None).await;
    tried.map(drop).map_err(|error| {
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
