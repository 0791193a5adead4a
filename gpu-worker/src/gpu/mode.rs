//! How sessions share the machine's GPUs, as its administrator has set it.
//!
//! In: the setting, and the machine's hardware. Out: the environment of each session's command, and what the
//! session holds while it lives.

use super::{
    CUDA_VISIBLE_DEVICES, ExclusiveGpu, ExclusiveGpus, Hardware, Limits, MONITORING, Membership,
    Reading, Timeshare, monitor, shared,
};
use baton_scheduling::arbiter::UserId;
use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{process::Command, sync::watch, task::spawn_blocking};

/// While one cell computes, another can prepare.
const SLOTS: usize = 2;

/// The variable with the folder of the MPS server's sockets.
const MPS_PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const MPS_PIPES_DEFAULT: &str = "/tmp/nvidia-mps";
/// The variable that limits how much a client of that server may allocate on which device.
const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMode {
    /// Sessions time-share each GPU, and each may use all of its memory.
    Timeshare,
    /// Sessions compute side by side through NVIDIA's server (MPS), which was started before.
    Mps,
    /// Each session has a slice of the hardware.
    Mig,
    /// Each session has a whole GPU.
    Exclusive,
    /// Baton does not control how sessions share GPUs.
    Open,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ModeError {
    #[error(transparent)]
    Timeshare(#[from] shared::OpenError),
    #[error(
        "worker.gpu_mode is mps, but no MPS server listens in {folder}: start it with \
         `nvidia-cuda-mps-control -d`, or set {MPS_PIPES} to its folder"
    )]
    NoMps { folder: PathBuf },
    #[error(
        "worker.gpu_mode is mig, but there is no slice: create some with `nvidia-smi mig`, or name them in \
         {CUDA_VISIBLE_DEVICES}"
    )]
    NoSlice,
    #[error(
        "worker.gpu_mode is exclusive, but no GPU was found: see the output of `nvidia-smi -L`"
    )]
    NoGpu,
}

/// The GPUs that all sessions of a worker share, or of which each session takes one.
#[derive(Clone)]
pub(crate) enum Sharing {
    Timeshare(Arc<Timeshare>),
    Mps {
        pipes: PathBuf,
        limit_bytes: Option<u64>,
        /// Why no session can start any more.
        lost: watch::Sender<Option<String>>,
    },
    Exclusive(Arc<ExclusiveGpus>),
    Open,
}

/// What a session holds while it lives.
pub(crate) enum Part {
    Timeshare(Membership),
    /// A GPU or slice for this session alone.
    Exclusive(ExclusiveGpu),
    Nothing,
}

impl Sharing {
    /// `limits` apply to each session, if the mode can enforce them. `reading` comes from the driver's
    /// monitoring. `baton` is the program that tests time-sharing.
    pub(crate) async fn open(
        mode: GpuMode,
        limits: Limits,
        reading: &watch::Receiver<Reading>,
        runtime_folder: &Path,
        baton: Option<&Path>,
    ) -> Result<Self, ModeError> {
        Ok(match mode {
            GpuMode::Timeshare => {
                let timeshare = Timeshare::open(runtime_folder, limits, reading, baton);
                timeshare
                    .await?
                    .map_or(Self::Open, |timeshare| Self::Timeshare(Arc::new(timeshare)))
            }
            GpuMode::Mps => Self::Mps {
                pipes: mps_pipes(env::var_os(MPS_PIPES))?,
                limit_bytes: limits.gpu_bytes,
                lost: watch::Sender::default(),
            },
            GpuMode::Mig => match found(monitor::slices).await {
                slices if slices.is_empty() => return Err(ModeError::NoSlice),
                slices => Self::Exclusive(ExclusiveGpus::new(slices)),
            },
            GpuMode::Exclusive => match found(monitor::gpus).await {
                gpus if gpus.is_empty() => return Err(ModeError::NoGpu),
                gpus => Self::Exclusive(ExclusiveGpus::new(gpus)),
            },
            GpuMode::Open => Self::Open,
        })
    }

    /// How many cells the worker runs at once by default: one on each exclusive GPU, or a few on each time-shared GPU.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Self::Exclusive(gpus) => gpus.count(),
            Self::Timeshare(timeshare) => SLOTS * timeshare.gpus(),
            Self::Mps { .. } | Self::Open => SLOTS,
        }
    }

    /// Waits for a GPU or slice, if the mode gives each session its own.
    pub(crate) async fn exclusive(&self) -> Option<ExclusiveGpu> {
        match self {
            Self::Exclusive(gpus) => Some(gpus.take().await),
            Self::Timeshare(_) | Self::Mps { .. } | Self::Open => None,
        }
    }

    /// How many sessions wait for a GPU or slice of their own.
    pub(crate) fn waiting(&self) -> watch::Receiver<usize> {
        match self {
            Self::Exclusive(gpus) => gpus.waiting(),
            Self::Timeshare(_) | Self::Mps { .. } | Self::Open => watch::channel(0).1,
        }
    }

    /// Why no session can start any more, if so.
    pub(crate) fn lost(&self) -> watch::Receiver<Option<String>> {
        match self {
            Self::Mps { lost, .. } => lost.subscribe(),
            Self::Timeshare(_) | Self::Exclusive(_) | Self::Open => watch::channel(None).1,
        }
    }

    /// Prepares the environment of the zygote that `command` starts: sessions' libraries are preloaded, but it
    /// gets no GPU. `folder` is its own.
    pub(crate) fn prepare(&self, command: &mut Command, folder: &Path) -> io::Result<()> {
        match self {
            Self::Timeshare(_) => shared::prepare(command, folder),
            Self::Exclusive(_) | Self::Mps { .. } | Self::Open => Ok(()),
        }
    }

    /// Prepares the environment of the session that `command` starts, and returns what the session holds.
    /// `folder` is its own.
    pub(crate) fn join(
        &self,
        user: UserId,
        exclusive: Option<ExclusiveGpu>,
        command: &mut Command,
        folder: &Path,
    ) -> io::Result<Part> {
        if let Some(exclusive) = exclusive {
            exclusive.show_to(command);
            return Ok(Part::Exclusive(exclusive));
        }
        match self {
            Self::Timeshare(timeshare) => {
                Ok(Part::Timeshare(timeshare.admit(user, command, folder)?))
            }
            Self::Mps {
                pipes,
                limit_bytes,
                lost,
            } => {
                if let Err(error) = look_for_server(pipes) {
                    lost.send_replace(Some(error.to_string()));
                    return Err(io::Error::other(error));
                }
                command.env(MPS_PIPES, pipes);
                if let Some(bytes) = limit_bytes {
                    command.env(MPS_MEMORY, format!("0={}M", bytes >> 20));
                }
                Ok(Part::Nothing)
            }
            Self::Exclusive(_) | Self::Open => Ok(Part::Nothing),
        }
    }
}

impl Part {
    /// `None` if the session may use any GPU of the worker, or if the driver does not report which one it uses.
    pub(crate) fn hardware(&self) -> Option<&Hardware> {
        match self {
            Self::Timeshare(membership) => membership.hardware(),
            Self::Exclusive(gpu) => Some(gpu.hardware()),
            Self::Nothing => None,
        }
    }

    pub(crate) fn membership(&self) -> Option<&Membership> {
        match self {
            Self::Timeshare(membership) => Some(membership),
            Self::Exclusive(_) | Self::Nothing => None,
        }
    }

    pub(crate) fn membership_mut(&mut self) -> Option<&mut Membership> {
        match self {
            Self::Timeshare(membership) => Some(membership),
            Self::Exclusive(_) | Self::Nothing => None,
        }
    }
}

/// `folder` is from the worker's environment.
fn mps_pipes(folder: Option<OsString>) -> Result<PathBuf, ModeError> {
    let folder = folder.filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| PathBuf::from(MPS_PIPES_DEFAULT), PathBuf::from);
    look_for_server(&folder)?;
    Ok(folder)
}

/// Checks that the server is alive. A server that has ended leaves its socket behind, which refuses
/// connections. Any other answer comes from a live server.
fn look_for_server(folder: &Path) -> Result<(), ModeError> {
    match UnixStream::connect(folder.join("control")) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            let folder = folder.to_owned();
            Err(ModeError::NoMps { folder })
        }
        _ => Ok(()),
    }
}

/// How much GPU memory one session may have, if that is less than the whole device.
pub(crate) async fn session_memory(mode: GpuMode, limit_bytes: Option<u64>) -> Option<u64> {
    match mode {
        GpuMode::Timeshare | GpuMode::Mps => limit_bytes,
        GpuMode::Mig => found(monitor::smallest_slice).await,
        GpuMode::Exclusive | GpuMode::Open => None,
    }
}

/// Looks in a blocking thread, because the driver may be slow.
async fn found<T: Default + Send + 'static>(look: fn(&OsStr, Option<&str>) -> T) -> T {
    let visible = env::var(CUDA_VISIBLE_DEVICES).ok();
    let look = spawn_blocking(move || look(MONITORING.as_ref(), visible.as_deref()));
    look.await.unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn a_server_of_mps_is_found_while_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let pipes = || mps_pipes(Some(folder.path().into()));
        let missing = pipes().unwrap_err().to_string();
        assert!(
            missing.contains("start it with `nvidia-cuda-mps-control -d`"),
            "{missing}"
        );
        let control = folder.path().join("control");
        let server = UnixListener::bind(&control).unwrap();
        assert_eq!(pipes().unwrap(), folder.path());
        drop(server);
        assert!(pipes().is_err());
        std::fs::remove_file(&control).unwrap();
        // A socket of another kind, but a live one.
        let _server = UnixDatagram::bind(&control).unwrap();
        assert!(pipes().is_ok());
    }
}
