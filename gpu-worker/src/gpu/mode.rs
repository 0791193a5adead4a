//! How sessions share the machine's GPUs, as its administrator has set it.
//!
//! In: the setting, and what the machine has. Out: what a session's command is told before it starts, and what the
//! session keeps of that.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_scheduling::arbiter::UserId;
use tokio::{process::Command, sync::watch, task::spawn_blocking};

use super::{
    CUDA_VISIBLE_DEVICES, Hardware, Limits, MONITORING, Membership, Place, Places, Reading,
    Timeshare, monitor, shared,
};

/// While one cell computes, another is got ready.
const SLOTS: usize = 2;

/// Where programs find the server of MPS.
const MPS_PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const MPS_PIPES_DEFAULT: &str = "/tmp/nvidia-mps";
/// How much of which device a client of that server may allocate.
const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMode {
    /// Sessions take timeshare, and each may use the whole memory.
    Timeshare,
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

/// What all sessions of a worker share, or each takes one of.
#[derive(Clone)]
pub(crate) enum Sharing {
    Timeshare(Arc<Timeshare>),
    Mps {
        pipes: PathBuf,
        limit_bytes: Option<u64>,
        /// Why no session can start any more.
        lost: watch::Sender<Option<String>>,
    },
    Places(Arc<Places>),
    Open,
}

/// What a session has while it lives.
pub(crate) enum Part {
    Timeshare(Membership),
    /// Nobody else has it meanwhile.
    Place(Place),
    Nothing,
}

impl Sharing {
    /// A session may have no more than `limits`, where the mode can see to that. `reading` is what the driver's
    /// monitoring tells. `baton` is the program that tries time-sharing.
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
                slices => Self::Places(Places::new(slices)),
            },
            GpuMode::Exclusive => match found(monitor::gpus).await {
                gpus if gpus.is_empty() => return Err(ModeError::NoGpu),
                gpus => Self::Places(Places::new(gpus)),
            },
            GpuMode::Open => Self::Open,
        })
    }

    /// How many cells the worker runs at once, where nobody says: one in each place, a few that take timeshare on each GPU.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Self::Places(places) => places.count(),
            Self::Timeshare(timeshare) => SLOTS * timeshare.gpus(),
            Self::Mps { .. } | Self::Open => SLOTS,
        }
    }

    /// Waits for a place, where each session has one.
    pub(crate) async fn place(&self) -> Option<Place> {
        match self {
            Self::Places(places) => Some(places.take().await),
            Self::Timeshare(_) | Self::Mps { .. } | Self::Open => None,
        }
    }

    /// How many sessions wait for a place.
    pub(crate) fn waiting(&self) -> watch::Receiver<usize> {
        match self {
            Self::Places(places) => places.waiting(),
            Self::Timeshare(_) | Self::Mps { .. } | Self::Open => watch::channel(0).1,
        }
    }

    /// Why no session can start any more, when that is so.
    pub(crate) fn lost(&self) -> watch::Receiver<Option<String>> {
        match self {
            Self::Mps { lost, .. } => lost.subscribe(),
            Self::Timeshare(_) | Self::Places(_) | Self::Open => watch::channel(None).1,
        }
    }

    /// Gives the zygote that `command` starts what sessions are loaded with, and no part of a GPU. `folder` is its own.
    pub(crate) fn prepare(&self, command: &mut Command, folder: &Path) -> io::Result<()> {
        match self {
            Self::Timeshare(_) => shared::prepare(command, folder),
            Self::Places(_) | Self::Mps { .. } | Self::Open => Ok(()),
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
            Self::Places(_) | Self::Open => Ok(Part::Nothing),
        }
    }
}

impl Part {
    /// `None`: any that the worker may use, or the driver does not say which.
    pub(crate) fn hardware(&self) -> Option<&Hardware> {
        match self {
            Self::Timeshare(membership) => membership.hardware(),
            Self::Place(place) => Some(place.hardware()),
            Self::Nothing => None,
        }
    }

    pub(crate) fn membership(&self) -> Option<&Membership> {
        match self {
            Self::Timeshare(membership) => Some(membership),
            Self::Place(_) | Self::Nothing => None,
        }
    }

    pub(crate) fn membership_mut(&mut self) -> Option<&mut Membership> {
        match self {
            Self::Timeshare(membership) => Some(membership),
            Self::Place(_) | Self::Nothing => None,
        }
    }
}

/// `folder` as the worker's environment has it.
fn mps_pipes(folder: Option<OsString>) -> Result<PathBuf, ModeError> {
    let folder = folder.filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| PathBuf::from(MPS_PIPES_DEFAULT), PathBuf::from);
    look_for_server(&folder)?;
    Ok(folder)
}

/// A server that has ended leaves its socket, which then refuses. What else a socket says comes from one that lives.
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

/// The driver may take its time.
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
        // Of another kind, but there.
        let _server = UnixDatagram::bind(&control).unwrap();
        assert!(pipes().is_ok());
    }
}
