//! The GPUs of a machine in the mode `timeshare`: each has its own arbiter, and each session uses one of them.

use super::{
    Hardware, HostRoom, Limits, Membership, Reading,
    monitor::{Monitored, each},
    shared::{OpenError, PRELOAD, SharedGpu},
    trial,
};
use crate::host_memory;
use anyhow::Context;
use baton_scheduling::arbiter::{Memory, Settings, UserId};
use futures_util::future::join_all;
use nix::unistd::Pid;
use std::{env, io, path::Path, sync::Arc, time::Duration};
use tokio::{process::Command, sync::watch};

const DRIVER: &str = "libcuda.so.1";

/// One part in this many of the GPU is left for contexts of sessions, which the interposer cannot move.
const CONTEXTS: u64 = 20;

/// Sessions may use one part in this many of the available host memory for data from the GPUs.
const HOST_SHARE: u64 = 2;

pub(crate) struct Timeshare {
    /// At least one.
    gpus: Vec<Arc<SharedGpu>>,
}

impl Timeshare {
    /// Returns `None` if programs would find no driver, cannot load the interposer, or compute wrong results
    /// when they time-share. If `reading` does not contain a GPU's memory, the test reports it. `baton` is the
    /// program that tests time-sharing; `None` skips the test, so that the first session reports the memory.
    pub(crate) async fn open(
        runtime_folder: &Path,
        limits: Limits,
        reading: &watch::Receiver<Reading>,
        baton: Option<&Path>,
    ) -> Result<Option<Self>, OpenError> {
        if !driver_is_here() {
            return Ok(None);
        }
        std::fs::create_dir_all(runtime_folder)?;
        let mut gpus = open_each(runtime_folder, limits, each(reading))?;
        let interposer = baton_interposer::install(gpus[0].folder())?;
        if let Some(complaint) = complaint(&interposer).await {
            tracing::warn!(
                "Sessions use the GPU without time-sharing, because programs cannot load {}: {complaint}",
                interposer.display()
            );
            return Ok(None);
        }
        if let Some(baton) = baton {
            gpus = try_out(baton, runtime_folder, gpus).await;
        }
        match gpus.len() {
            0 => return Ok(None),
            1 => tracing::info!("Sessions time-share this machine's GPU"),
            count => tracing::info!("Sessions time-share each of {count} GPUs"),
        }
        Ok(Some(Self { gpus }))
    }

    pub(crate) fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Admits the session that `command` starts to the GPU with the fewest running cells, then the fewest
    /// sessions. `folder` is the session's own.
    pub(crate) fn admit(
        &self,
        user: UserId,
        command: &mut Command,
        folder: &Path,
    ) -> io::Result<Membership> {
        let gpu = self.gpus.iter().min_by_key(|gpu| gpu.load());
        gpu.expect("there is one").admit(user, command, folder)
    }
}

/// Tries time-sharing on each of these GPUs, as a worker does before its first cell. An error says why a worker
/// would not use it on a GPU. `baton` is the program that tests it.
pub async fn try_time_sharing(
    runtime_folder: &Path,
    baton: &Path,
    gpus: &[Hardware],
) -> anyhow::Result<()> {
    anyhow::ensure!(driver_is_here(), "programs find no CUDA driver ({DRIVER})");
    let folder = tempfile::tempdir_in(runtime_folder)?;
    let interposer = baton_interposer::install(folder.path())?;
    if let Some(complaint) = complaint(&interposer).await {
        anyhow::bail!(
            "programs cannot load the library for it ({}): {complaint}",
            interposer.display()
        );
    }
    // A single GPU needs no name.
    let names = match gpus {
        [] | [_] => vec![None],
        several => several.iter().map(|gpu| Some(gpu.name.as_str())).collect(),
    };
    for name in names {
        trial::run(baton, folder.path(), name)
            .await
            .with_context(|| {
                let gpu = name.unwrap_or("this machine's GPU");
                format!("two test programs failed on {gpu}")
            })?;
    }
    Ok(())
}

/// Opens each GPU. If there are several, each session is told which one to use; a single GPU needs no name.
fn open_each(
    runtime_folder: &Path,
    limits: Limits,
    mut seen: Vec<Monitored>,
) -> Result<Vec<Arc<SharedGpu>>, OpenError> {
    let share = HOST_SHARE * seen.len().max(1) as u64;
    let open = |name, monitored: Option<Monitored>| {
        let settings = move |memory_bytes| settings(memory_bytes, share);
        let gpu_limit = limits.gpu_bytes;
        let gpu = SharedGpu::open(runtime_folder, gpu_limit, settings, name, monitored)?;
        gpu.follow_host(move |processes| look_at_host(processes, share, limits.memory_bytes));
        Ok::<_, OpenError>(gpu)
    };
    if seen.len() < 2 {
        return Ok(vec![open(None, seen.pop())?]);
    }
    let one = |gpu: Monitored| open(Some(gpu.name().to_owned()), Some(gpu));
    seen.into_iter().map(one).collect()
}

fn look_at_host(processes: &[Pid], share: u64, session_limit_bytes: Option<u64>) -> HostRoom {
    let left_to = |process: &Pid| {
        let left = host_memory::left_to(*process, session_limit_bytes);
        (*process, left)
    };
    HostRoom {
        bytes: host_memory::available_bytes() / share,
        of_processes: processes.iter().map(left_to).collect(),
    }
}

/// Returns the GPUs on which two test programs time-share correctly.
async fn try_out(
    baton: &Path,
    runtime_folder: &Path,
    gpus: Vec<Arc<SharedGpu>>,
) -> Vec<Arc<SharedGpu>> {
    let trials = gpus
        .iter()
        .map(|gpu| trial::run(baton, runtime_folder, gpu.name()));
    let tried = join_all(trials).await;
    let mut right = Vec::new();
    for (gpu, tried) in gpus.into_iter().zip(tried) {
        match tried {
            Ok(found) => {
                gpu.set_memory(found.memory_bytes);
                gpu.set_sleeper(found.sleeper);
                right.push(gpu);
            }
            Err(error) => tracing::warn!(
                "Sessions do not time-share {}, because two test programs failed: {error}",
                gpu.name().unwrap_or("this machine's GPU")
            ),
        }
    }
    right
}

fn settings(total_bytes: u64, host_share: u64) -> Settings {
    let usable_bytes = total_bytes - total_bytes / CONTEXTS;
    let mut settings = Settings::new(Memory {
        usable_bytes,
        reserve_bytes: usable_bytes / 10,
        host_bytes: host_memory::available_bytes() / host_share,
    });
    settings.drain_limit = Duration::from_secs(60);
    settings
}

/// Whether programs find a driver: on the loader's path, or by the device file of the system's driver.
#[must_use]
pub fn driver_is_here() -> bool {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(DRIVER).is_file())
        || Path::new("/dev/nvidiactl").exists()
}

/// The loader's message if it cannot load the library, for example because the file system is mounted `noexec`.
async fn complaint(interposer: &Path) -> Option<String> {
    let mut command = Command::new("true");
    let tried = command.env(PRELOAD, interposer).output().await;
    let said = match tried {
        Ok(tried) => String::from_utf8_lossy(&tried.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    (!said.is_empty()).then_some(said)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_host_s_memory_is_shared_among_gpus_and_each_process_has_its_session_s_limit() {
        let this = Pid::this();
        let used = crate::processes::resident_bytes(this, None);
        let room = look_at_host(&[this], 4, Some(used + (1 << 30)));
        assert!(room.bytes > 0 && room.bytes <= host_memory::total_bytes() / 4);
        let [(process, own)] = room.of_processes[..] else {
            panic!("{room:?}")
        };
        // Other tests of this process allocate meanwhile.
        assert!(process == this && own > 0 && own < 2 << 30, "{room:?}");
        assert_eq!(look_at_host(&[this], 4, Some(1)).of_processes, [(this, 0)]);
    }

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
