//! How sessions share the machine's GPUs, as its administrator has set it.
//!
//! In: the setting, and what the machine has. Out: what a session's command is told before it starts, and what the
//! session keeps of that.

use std::{
    env, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_arbiter::UserId;
use tokio::{process::Command, sync::watch, task::spawn_blocking};

use super::{
    CUDA_VISIBLE_DEVICES, MONITORING, Membership, Place, Places, SharedGpu, monitor, shared,
};

/// Where programs find the server of MPS.
const MPS_PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const MPS_PIPES_DEFAULT: &str = "/tmp/nvidia-mps";
/// How much of which device a client of that server may allocate.
const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMode {
    /// Sessions take turns, and each may use the whole memory.
    Turns,
    /// Sessions compute side by side through the vendor's server, which was started before.
    Mps,
    /// Each session has a slice of the hardware.
    Mig,
    /// Each session has a whole GPU.
    Exclusive,
    /// Baton does nothing about it.
    Open,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ModeError {
    #[error(transparent)]
    Turns(#[from] shared::OpenError),
    #[error(
        "worker.gpu_mode is mps, and no server of MPS listens in {folder}: start it with \
         `nvidia-cuda-mps-control -d`, or say where it is with {MPS_PIPES}"
    )]
    NoMps { folder: PathBuf },
    #[error(
        "worker.gpu_mode is mig, and there is no slice: make some with `nvidia-smi mig`, or name them in \
         {CUDA_VISIBLE_DEVICES}"
    )]
    NoSlice,
    #[error("worker.gpu_mode is exclusive, and no GPU was found: see what `nvidia-smi -L` says")]
    NoGpu,
}

/// What all sessions of a worker share, or each takes one of.
#[derive(Clone)]
pub(crate) enum Sharing {
    Turns(Arc<SharedGpu>),
    Mps {
        pipes: PathBuf,
        limit_bytes: Option<u64>,
    },
    Places(Arc<Places>),
    Open,
}

/// What a session has while it lives.
pub(crate) enum Part {
    Turns(Membership),
    /// Nobody else has it meanwhile.
    Place(#[expect(dead_code, reason = "it is given back when it is dropped")] Place),
    Nothing,
}

impl Sharing {
    /// A session may have `limit_bytes` of a GPU's memory (`None`: all), where the mode can see to that.
    pub(crate) async fn open(
        mode: GpuMode,
        limit_bytes: Option<u64>,
        runtime_folder: &Path,
    ) -> Result<Self, ModeError> {
        Ok(match mode {
            GpuMode::Turns => match SharedGpu::open(runtime_folder, limit_bytes).await? {
                Some(gpu) => Self::Turns(gpu),
                None => Self::Open,
            },
            GpuMode::Mps => Self::Mps {
                pipes: mps_pipes()?,
                limit_bytes,
            },
            GpuMode::Mig => match found(monitor::slices).await {
                slices if slices.is_empty() => return Err(ModeError::NoSlice),
                slices => Self::Places(Places::new(slices)),
            },
            GpuMode::Exclusive => match found(monitor::gpus).await {
                gpus if gpus.is_empty() => return Err(ModeError::NoGpu),
                gpus => Self::Places(Places::new(gpus)),
            },
            GpuMode::Open => Self::Open,
        })
    }

    /// Waits for a place, where each session has one.
    pub(crate) async fn place(&self) -> Option<Place> {
        match self {
            Self::Places(places) => Some(places.take().await),
            Self::Turns(_) | Self::Mps { .. } | Self::Open => None,
        }
    }

    /// How many sessions wait for a place.
    pub(crate) fn waiting(&self) -> watch::Receiver<usize> {
        match self {
            Self::Places(places) => places.waiting(),
            Self::Turns(_) | Self::Mps { .. } | Self::Open => watch::channel(0).1,
        }
    }

    /// Tells the session that `command` starts what it has. `folder` is its own.
    pub(crate) fn join(
        &self,
        user: UserId,
        place: Option<Place>,
        command: &mut Command,
        folder: &Path,
    ) -> io::Result<Part> {
        if let Some(place) = place {
            place.show_to(command);
            return Ok(Part::Place(place));
        }
        match self {
            Self::Turns(gpu) => Ok(Part::Turns(gpu.admit(user, command, folder)?)),
            Self::Mps { pipes, limit_bytes } => {
                command.env(MPS_PIPES, pipes);
                if let Some(bytes) = limit_bytes {
                    command.env(MPS_MEMORY, format!("0={}M", bytes >> 20));
                }
                Ok(Part::Nothing)
            }
            Self::Places(_) | Self::Open => Ok(Part::Nothing),
        }
    }
}

impl Part {
    pub(crate) fn membership(&self) -> Option<&Membership> {
        match self {
            Self::Turns(membership) => Some(membership),
            Self::Place(_) | Self::Nothing => None,
        }
    }
}

fn mps_pipes() -> Result<PathBuf, ModeError> {
    let folder = env::var_os(MPS_PIPES).filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| PathBuf::from(MPS_PIPES_DEFAULT), PathBuf::from);
    match folder.join("control").exists() {
        true => Ok(folder),
        false => Err(ModeError::NoMps { folder }),
    }
}

/// The driver may take its time.
async fn found(look: fn(&std::ffi::OsStr, Option<&str>) -> Vec<String>) -> Vec<String> {
    let visible = env::var(CUDA_VISIBLE_DEVICES).ok();
    let look = spawn_blocking(move || look(MONITORING.as_ref(), visible.as_deref()));
    look.await.unwrap_or_default()
}
