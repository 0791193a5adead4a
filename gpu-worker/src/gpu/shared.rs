//! A worker's GPU: where its sessions find it, and each session's part in it.

use std::{
    env, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use baton_arbiter::{Memory, Settings, UserId};
use baton_interposer::wire::{SOCKET, TOKEN};
use baton_jupyter_link::folder::{FolderError, PrivateFolder};
use tokio::{process::Command, sync::watch};

use super::{
    Admission, Cell, Gpu, Lone, Reading, Token, Usage,
    program::ProgramError,
    sleep::{Sleeper, Woken},
    trial,
};
use crate::device;

const DRIVER: &str = "libcuda.so.1";
const PRELOAD: &str = "LD_PRELOAD";

const NO_ROOM: &str = "others make no room";

/// What contexts of sessions take beside what they allocate: the library cannot move that.
const CONTEXTS: u64 = 20;

/// Of the host's memory: how much of it sessions may have on the GPU or moved out of it.
const HOST_SHARE: u64 = 2;

/// Sessions share memory; libraries that take most of it at once are told not to.
const THRIFT: [(&str, &str); 2] = [
    ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
];

pub(crate) struct SharedGpu {
    gpu: Gpu,
    /// How much a session may allocate.
    limit_bytes: Option<u64>,
    /// Where the driver can take a session off the GPU.
    sleeper: OnceLock<Sleeper>,
    folder: PrivateFolder,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("Failed to listen for sessions that use the GPU")]
    Listen(#[from] io::Error),
}

impl SharedGpu {
    /// `None` where programs would find no driver, cannot load the interposer, or do not compute right in turns.
    /// Where `reading` does not say how much memory the GPU has, the first session does. `baton` is the program that
    /// tries turns; `None`: nothing does.
    pub(crate) async fn open(
        runtime_folder: &Path,
        limit_bytes: Option<u64>,
        reading: watch::Receiver<Reading>,
        baton: Option<&Path>,
    ) -> Result<Option<Arc<Self>>, OpenError> {
        if !driver_is_here() {
            return Ok(None);
        }
        std::fs::create_dir_all(runtime_folder)?;
        let gpu_bytes = reading.borrow().memory_bytes();
        let settings = move |said| settings(gpu_bytes.unwrap_or(said));
        let shared = Self::listen(runtime_folder, limit_bytes, settings, Some(reading))?;
        let interposer = baton_interposer::install(shared.folder())?;
        if let Some(complaint) = complaint(&interposer).await {
            tracing::warn!(
                "Sessions use the GPU without taking turns, because programs cannot load {}: {complaint}",
                interposer.display()
            );
            return Ok(None);
        }
        if let Some(baton) = baton {
            match trial::run(baton, runtime_folder).await {
                Ok(Some(sleeper)) => shared.sleeper.set(sleeper).expect("it is set once"),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        "Sessions take no turns on this machine's GPU, because two programs that tried it failed: \
                         {error}"
                    );
                    return Ok(None);
                }
            }
        }
        tracing::info!("Sessions take turns on this machine's GPU");
        Ok(Some(shared))
    }

    /// In a new folder, for programs that `admit` starts.
    pub(super) fn listen(
        runtime_folder: &Path,
        limit_bytes: Option<u64>,
        settings: impl FnOnce(u64) -> Settings + Send + Sync + 'static,
        reading: Option<watch::Receiver<Reading>>,
    ) -> Result<Arc<Self>, OpenError> {
        let folder = PrivateFolder::create_in(runtime_folder, "gpu")?;
        Ok(Arc::new(Self {
            gpu: Gpu::start(&folder.path().join("gpu"), settings, reading)?,
            limit_bytes,
            sleeper: OnceLock::new(),
            folder,
        }))
    }

    /// It is private, and goes with this value.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets the session that `command` starts take part. `folder` is its own.
    pub(crate) fn admit(
        self: &Arc<Self>,
        user: UserId,
        command: &mut Command,
        folder: &Path,
    ) -> io::Result<Membership> {
        let token = uuid::Uuid::new_v4().as_u128();
        let interposer = baton_interposer::install(folder)?;
        command
            .env(PRELOAD, with_others(interposer))
            .env(SOCKET, self.folder.path().join("gpu"))
            .env(TOKEN, format!("{token:x}"));
        for (name, value) in THRIFT {
            if env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        let released = self.gpu.admit(Admission {
            token,
            user,
            cap_bytes: self.limit_bytes,
        });
        Ok(Membership {
            shared: self.clone(),
            token,
            released,
            asleep: None,
        })
    }
}

/// A session's part in the GPU, until it is dropped.
pub(crate) struct Membership {
    shared: Arc<SharedGpu>,
    token: Token,
    released: watch::Receiver<bool>,
    /// Off the GPU until it is woken.
    asleep: Option<Lone>,
}

impl Membership {
    /// Takes the session off the GPU, context and all. `false` where that cannot be done: it is to end.
    pub(crate) async fn sleep(&mut self) -> bool {
        let Some(sleeper) = self.shared.sleeper.get() else {
            return false;
        };
        let Some(process) = self.shared.gpu.process(self.token).await else {
            return false;
        };
        if let Err(error) = sleeper.sleep(process.pid).await {
            tracing::warn!("A session could not be taken off the GPU: {error}");
            return false;
        }
        self.asleep = Some(process);
        self.shared.gpu.vacated(process);
        // From then on it may be told to leave anew.
        self.released.wait_for(|released| !released).await.is_ok()
    }

    /// Brings it back, if it is off the GPU: others make room. After an error the session is to end. Cancel safe: it
    /// may be woken again.
    pub(crate) async fn wake(&mut self) -> Result<(), ProgramError> {
        let (Some(sleeper), Some(process)) = (self.shared.sleeper.get(), self.asleep) else {
            return Ok(());
        };
        let is_there = self.shared.gpu.process(self.token).await == Some(process);
        let mut room = None;
        while is_there && sleeper.wake(process.pid).await? == Woken::Full {
            let room = room.get_or_insert_with(|| self.shared.gpu.room(self.token));
            if !room.more().await {
                return Err(ProgramError::Wrong(NO_ROOM.to_owned()));
            }
        }
        self.asleep = None;
        Ok(())
    }

    /// Returns when the session has no cell and others lack what its contexts take.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + use<> {
        let mut released = self.released.clone();
        async move {
            if released.wait_for(|released| *released).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// How much the session may allocate from now on; `None`: as much as any.
    pub(crate) async fn limit(&self, bytes: Option<u64>) {
        self.shared.gpu.limit(self.token, bytes).await;
    }

    pub(crate) fn cell(&self, cell: Cell) {
        self.shared.gpu.cell(self.token, cell);
    }

    /// Why it can use the GPU no more: the driver's code.
    pub(crate) fn fault(&self) -> impl Future<Output = Option<u32>> + use<> {
        let (shared, token) = (self.shared.clone(), self.token);
        async move { shared.gpu.usage(token).await.fault }
    }

    /// Since it was last asked.
    pub(crate) async fn usage(&self) -> Usage {
        self.shared.gpu.usage(self.token).await
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.gpu.dismiss(self.token);
    }
}

fn settings(total_bytes: u64) -> Settings {
    let usable_bytes = total_bytes - total_bytes / CONTEXTS;
    let mut settings = Settings::new(Memory {
        usable_bytes,
        reserve_bytes: usable_bytes / 10,
        host_bytes: device::memory().total_bytes / HOST_SHARE,
    });
    settings.drain_limit = Duration::from_secs(60);
    settings
}

/// On the loader's path, or because the system's driver has its device.
fn driver_is_here() -> bool {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(DRIVER).is_file())
        || Path::new("/dev/nvidiactl").exists()
}

/// What the loader says where it cannot load the library, for example from a folder that forbids programs.
async fn complaint(interposer: &Path) -> Option<String> {
    let mut command = Command::new("true");
    let tried = command.env(PRELOAD, interposer).output().await;
    let said = match tried {
        Ok(tried) => String::from_utf8_lossy(&tried.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    (!said.is_empty()).then_some(said)
}

/// What is loaded first already goes on to be.
fn with_others(interposer: PathBuf) -> std::ffi::OsString {
    let mut libraries = interposer.into_os_string();
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    libraries
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_library_that_programs_cannot_load_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let interposer = baton_interposer::install(folder.path()).unwrap();
        assert_eq!(complaint(&interposer).await, None);
        std::fs::write(&interposer, "no library").unwrap();
        let complaint = complaint(&interposer).await.unwrap();
        assert!(complaint.contains("interposer.so"), "{complaint}");
    }
}
