//! One shared GPU: how its sessions connect to it, and each session's membership.

use super::{
    Admission, CUDA_VISIBLE_DEVICES, Cell, Gpu, Hardware, HostRoom, Listener, Lone, Monitored,
    Token, Usage, program::ProgramError, sleep::Sleeper,
};
use baton_interposer::wire::{DEVICE, SOCKET, TOKEN};
use baton_jupyter_wire::folder::{FolderError, PrivateFolder};
use baton_scheduling::arbiter::{Settings, UserId};
use nix::unistd::Pid;
use std::{
    env, io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::{process::Command, sync::watch};

pub(super) const PRELOAD: &str = "LD_PRELOAD";

/// The name of a session's socket in its own folder.
const OWN_SOCKET: &str = "gpu";

const NO_ROOM: &str = "other sessions make no room";

/// What a process is assumed to have on the GPU besides memory that can move, if the driver does not report it: one
/// part in this many of the GPU, but at most this many bytes.
const UNKNOWN_PART: u64 = 8;
const UNKNOWN_BYTES: u64 = 1 << 30;

/// A process gets this part more when it returns to the GPU, because its return must not fail.
const SPARE_PART: u64 = 4;

/// Sessions share the GPU's memory, so these variables keep libraries from allocating most of it at once.
const THRIFT: [(&str, &str); 2] = [
    ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
];

pub(crate) struct SharedGpu {
    gpu: Gpu,
    /// Sessions see only the GPU of this name; `None`: it is the only GPU.
    name: Option<String>,
    /// The driver's name for the GPU, if its monitoring reports it.
    device: Option<String>,
    /// The GPU in the driver's monitoring, if that is available.
    monitored: Option<Monitored>,
    /// How much a session may allocate.
    limit_bytes: Option<u64>,
    /// The GPU's memory, if the driver's monitoring or the trial reports it.
    memory_bytes: Arc<OnceLock<u64>>,
    /// Set if the driver can take a session off the GPU.
    sleeper: OnceLock<Sleeper>,
    cells: AtomicUsize,
    sessions: AtomicUsize,
    folder: PrivateFolder,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("Failed to write into the worker's runtime folder")]
    Write(#[from] io::Error),
}

impl SharedGpu {
    /// `settings` computes the arbiter's settings from the GPU's memory in bytes, which the first session reports if
    /// nothing else does.
    pub(super) fn open(
        runtime_folder: &Path,
        limit_bytes: Option<u64>,
        settings: impl FnOnce(u64) -> Settings + Send + Sync + 'static,
        name: Option<String>,
        monitored: Option<Monitored>,
    ) -> Result<Arc<Self>, OpenError> {
        let folder = PrivateFolder::create_in(runtime_folder, "gpu")?;
        let device = monitored.as_ref().map(|gpu| gpu.name().to_owned());
        let reported = monitored.as_ref().and_then(Monitored::memory_bytes);
        let memory_bytes = Arc::new(reported.map_or_else(OnceLock::new, OnceLock::from));
        let known = memory_bytes.clone();
        let settings = move |said| settings(known.get().copied().unwrap_or(said));
        Ok(Arc::new(Self {
            device: device.or_else(|| name.clone()),
            gpu: Gpu::start(settings, monitored.clone()),
            monitored,
            name,
            limit_bytes,
            memory_bytes,
            sleeper: OnceLock::new(),
            cells: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            folder,
        }))
    }

    /// See [`Gpu::follow_host`].
    pub(super) fn follow_host(&self, look: impl Fn(&[Pid]) -> HostRoom + Send + Sync + 'static) {
        self.gpu.follow_host(look);
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Called before the first session with the GPU's memory, if a trial has reported it. The driver's monitoring
    /// takes precedence.
    pub(super) fn set_memory(&self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.memory_bytes.get_or_init(|| bytes);
        }
    }

    /// Called once with the [`Sleeper`] that can take sessions off the GPU, if the driver supports that.
    pub(super) fn set_sleeper(&self, sleeper: Option<Sleeper>) {
        if let Some(sleeper) = sleeper {
            self.sleeper.set(sleeper).expect("it is set once");
        }
    }

    /// How many cells run on the GPU, and how many sessions use it.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.cells.load(Relaxed), self.sessions.load(Relaxed))
    }

    /// How much room a process needs to return after it has left the GPU. All that can move has left already.
    async fn bytes_to_return(&self, process: Pid) -> u64 {
        let Some(monitored) = &self.monitored else {
            return UNKNOWN_BYTES;
        };
        monitored.read_anew().await;
        let total = monitored.memory_bytes().unwrap_or(u64::MAX);
        let unknown = (total / UNKNOWN_PART).min(UNKNOWN_BYTES);
        let known = monitored.processes().get(&process).copied().flatten();
        let bytes = known.unwrap_or(unknown);
        bytes + bytes / SPARE_PART
    }

    /// Whether the driver has this much free memory; `None` if it does not report that.
    async fn has_free(&self, bytes: u64) -> Option<bool> {
        let monitored = self.monitored.as_ref()?;
        monitored.read_anew().await;
        Some(monitored.free_bytes()? >= bytes)
    }

    /// A private folder that is deleted with this value.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Admits the session that `command` starts, and listens for it in `folder`, which is the session's own.
    pub(crate) fn admit(
        self: &Arc<Self>,
        user: UserId,
        command: &mut Command,
        folder: &Path,
    ) -> io::Result<Membership> {
        let token = uuid::Uuid::new_v4().as_u128();
        let socket = folder.join(OWN_SOCKET);
        let listener = self.gpu.listen(&socket)?;
        prepare(command, folder)?;
        command.env(SOCKET, socket).env(TOKEN, format!("{token:x}"));
        if let Some(name) = &self.name {
            command.env(CUDA_VISIBLE_DEVICES, name);
        }
        if let Some(device) = &self.device {
            command.env(DEVICE, device);
        }
        let released = self.gpu.admit(Admission {
            token,
            user,
            cap_bytes: self.limit_bytes,
        });
        self.sessions.fetch_add(1, Relaxed);
        Ok(Membership {
            shared: self.clone(),
            _listener: listener,
            token,
            released,
            asleep: None,
            has_cell: AtomicBool::new(false),
        })
    }
}

/// A process that is off the GPU.
#[derive(Clone, Copy)]
struct Asleep {
    process: Lone,
    /// How much room it needs there.
    bytes: u64,
}

/// A session's use of the GPU, until it is dropped.
pub(crate) struct Membership {
    shared: Arc<SharedGpu>,
    _listener: Listener,
    token: Token,
    released: watch::Receiver<bool>,
    asleep: Option<Asleep>,
    has_cell: AtomicBool,
}

impl Membership {
    /// The GPU that the session has for as long as it lives.
    pub(super) fn hardware(&self) -> Option<&Hardware> {
        self.shared.monitored.as_ref().map(Monitored::hardware)
    }

    /// Takes the session off the GPU, with its context. Returns `false` if that is impossible; the session must
    /// end then.
    pub(crate) async fn sleep(&mut self) -> bool {
        let Some(sleeper) = self.shared.sleeper.get() else {
            return false;
        };
        let Some(process) = self.shared.gpu.process(self.token).await else {
            return false;
        };
        let bytes = self.shared.bytes_to_return(process.pid).await;
        if let Err(error) = sleeper.sleep(process.pid).await {
            tracing::warn!("Failed to move a session off the GPU: {error}");
            return false;
        }
        self.asleep = Some(Asleep { process, bytes });
        self.shared.gpu.vacated(process);
        // After this, a new request to leave is not taken for the old one.
        self.released.wait_for(|released| !released).await.is_ok()
    }

    /// Returns the session to the GPU if it is off; others make room. After an error the session must end.
    /// Cancel safe: it can be called again.
    pub(crate) async fn wake(&mut self) -> Result<(), ProgramError> {
        let (Some(sleeper), Some(asleep)) = (self.shared.sleeper.get(), self.asleep) else {
            return Ok(());
        };
        let Asleep { process, bytes } = asleep;
        if self.shared.gpu.process(self.token).await == Some(process) {
            let mut room = self.shared.gpu.room(self.token);
            loop {
                let is_made = room.more(bytes).await;
                if self.shared.has_free(bytes).await.unwrap_or(is_made) {
                    break;
                }
                if !is_made {
                    return Err(ProgramError::Wrong(NO_ROOM.to_owned()));
                }
            }
            sleeper.wake(process.pid).await?;
        }
        self.asleep = None;
        Ok(())
    }

    /// Returns when the session has no cell and others need the room that its contexts take.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + use<> {
        let mut released = self.released.clone();
        async move {
            if released.wait_for(|released| *released).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Sets how much the session may allocate from now on; `None`: as much as any session.
    pub(crate) async fn limit(&self, bytes: Option<u64>) {
        self.shared.gpu.limit(self.token, bytes).await;
    }

    pub(crate) fn cell(&self, cell: Cell) {
        self.count(cell != Cell::Ended);
        self.shared.gpu.cell(self.token, cell);
    }

    fn count(&self, has_cell: bool) {
        match (self.has_cell.swap(has_cell, Relaxed), has_cell) {
            (false, true) => self.shared.cells.fetch_add(1, Relaxed),
            (true, false) => self.shared.cells.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }

    /// The driver's error code after which the session can no longer use the GPU, if any. Like [`Self::usage`],
    /// this starts a new count.
    pub(crate) fn fault(&self) -> impl Future<Output = Option<u32>> + use<> {
        let (shared, token) = (self.shared.clone(), self.token);
        async move { shared.gpu.usage(token).await.fault }
    }

    /// See [`Gpu::waits`].
    pub(crate) async fn waits(&self) -> bool {
        self.shared.gpu.waits(self.token).await
    }

    /// Returns the usage since the last call, and starts a new count.
    pub(crate) async fn usage(&self) -> Usage {
        self.shared.gpu.usage(self.token).await
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.count(false);
        self.shared.sessions.fetch_sub(1, Relaxed);
        self.shared.gpu.dismiss(self.token);
    }
}

/// Sets the environment variables that the interposer and libraries need when a session's process starts.
/// Libraries that are already preloaded stay preloaded.
pub(super) fn prepare(command: &mut Command, folder: &Path) -> io::Result<()> {
    let interposer = baton_interposer::install(folder)?;
    command.env(PRELOAD, with_others(interposer));
    for (name, value) in THRIFT {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    Ok(())
}

fn with_others(interposer: PathBuf) -> std::ffi::OsString {
    let mut libraries = interposer.into_os_string();
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    libraries
}
