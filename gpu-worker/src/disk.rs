//! How much disk a session takes in the folders to which it can write.
//!
//! In: the folders, and the session's processes. Out: that they hold more than the session may store. A file that a cell
//! has removed counts as long as a process has it open, or mapped if the worker is privileged.
//!
//! **Invariant:** a folder in which the worker cannot look counts as too full, because it could hide anything.

use crate::processes;
use nix::{
    sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs},
    unistd::Pid,
};
use std::{
    collections::HashSet,
    fs::{self, Metadata},
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    task::{AbortHandle, spawn_blocking},
};

/// The shortest pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looking takes at most one part in this many of the time.
const PART: u32 = 20;

/// The unit in which the system counts the space of a file (`stat(2)`).
const BLOCK_BYTES: u64 = 512;

/// The least that a file or folder counts. File systems have room for a limited number of them, also of empty ones.
const LEAST_BYTES: u64 = 4096;

/// Watches the folders of a session until it is dropped.
pub(crate) struct Disk {
    full: watch::Receiver<Option<Full>>,
    task: AbortHandle,
}

/// The folders hold more than they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    /// `None` if the worker cannot look into one of the folders.
    pub(crate) used_bytes: Option<u64>,
    pub(crate) limit_bytes: u64,
}

impl Disk {
    /// `roots`: the processes of the session are these and their descendants.
    pub(crate) fn watch(folders: Vec<PathBuf>, roots: Vec<Pid>, limit_bytes: u64) -> Self {
        let (says, full) = watch::channel(None);
        let task = tokio::spawn(async move {
            loop {
                let since = Instant::now();
                let (of, roots) = (folders.clone(), roots.clone());
                let look = spawn_blocking(move || {
                    Ok::<_, io::Error>(used_bytes(of, limit_bytes)? + removed_bytes(&roots))
                });
                // The runtime ends if the task was cancelled.
                let Ok(used) = look.await else { return };
                let used_bytes = used.ok();
                if used_bytes.is_none_or(|bytes| bytes > limit_bytes) {
                    let full = Full {
                        used_bytes,
                        limit_bytes,
                    };
                    says.send_replace(Some(full));
                    return;
                }
                tokio::time::sleep(LOOK_EVERY.max(since.elapsed() * PART)).await;
            }
        });
        Self {
            full,
            task: task.abort_handle(),
        }
    }

    /// Waits until the folders hold too much. Cancel safe.
    pub(crate) async fn full(&mut self) -> Full {
        let full = self.full.wait_for(Option::is_some).await;
        match full.ok().and_then(|full| *full) {
            Some(full) => full,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Follows no links. Stops once the sum is above `enough`.
fn used_bytes(mut folders: Vec<PathBuf>, enough: u64) -> io::Result<u64> {
    let mut several_names = HashSet::new();
    let mut sum = 0;
    while let Some(folder) = folders.pop() {
        let Some(entries) = unless_gone(fs::read_dir(&folder))? else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            let Some(status) = unless_gone(entry.metadata())? else {
                continue;
            };
            if status.is_dir() {
                folders.push(entry.path());
            } else if status.nlink() > 1 && !several_names.insert((status.dev(), status.ino())) {
                continue;
            }
            sum += bytes_of(&status);
            if sum > enough {
                return Ok(sum);
            }
        }
    }
    Ok(sum)
}

/// Files on a disk that these processes or their descendants have open or mapped, and that no folder contains any more.
fn removed_bytes(roots: &[Pid]) -> u64 {
    let mut seen = HashSet::new();
    let mut sum = 0;
    for process in roots.iter().copied().flat_map(processes::with_descendants) {
        // Nobody can look into a process that is ending, and only root into one that forbids it outside a sandbox.
        // A file may be mapped without being open. Only privileged workers can look at such files.
        let listed = ["fd", "map_files"].map(|of| fs::read_dir(format!("/proc/{process}/{of}")));
        for file in listed.into_iter().flatten().flatten().flatten() {
            // This follows the link to the file, whether or not the file has a name.
            let Ok(status) = fs::metadata(file.path()) else {
                continue;
            };
            let is_removed = status.is_file() && status.nlink() == 0;
            if is_removed
                && !is_in_memory(&file.path())
                && seen.insert((status.dev(), status.ino()))
            {
                sum += bytes_of(&status);
            }
        }
    }
    sum
}

/// Files in memory count as the session's memory.
fn is_in_memory(file: &Path) -> bool {
    statfs(file)
        .is_ok_and(|system| [TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&system.filesystem_type()))
}

fn bytes_of(status: &Metadata) -> u64 {
    LEAST_BYTES.max(status.blocks() * BLOCK_BYTES)
}

/// `None` if it was removed meanwhile.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        result => result.map(Some),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn space_counts_once_and_holes_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let used = || used_bytes(vec![folder.path().to_owned()], u64::MAX).unwrap();
        let below = folder.path().join("below");
        fs::create_dir(&below).unwrap();
        let empty = used();
        let sparse = fs::File::create(folder.path().join("placeholder")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        std::os::unix::fs::symlink("/usr", below.join("link")).unwrap();
        assert!(used() < empty + (1 << 20));
        fs::write(below.join("file"), vec![1; 4 << 20]).unwrap();
        let full = used();
        assert!(full >= empty + (4 << 20));
        fs::hard_link(below.join("file"), folder.path().join("again")).unwrap();
        assert!(used() < full + (1 << 20));
    }

    #[test]
    fn an_empty_file_takes_room() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..300 {
            fs::File::create(folder.path().join(number.to_string())).unwrap();
        }
        assert!(used_bytes(vec![folder.path().to_owned()], u64::MAX).unwrap() >= 300 * LEAST_BYTES);
    }

    #[test]
    fn a_removed_file_counts_while_a_process_has_it_open() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        let held = fs::File::create(&path).unwrap();
        fs::write(&path, vec![1; 4 << 20]).unwrap();
        let mut holder = std::process::Command::new("sleep")
            .arg("600")
            .stdin(held)
            .spawn()
            .unwrap();
        let roots = [Pid::from_raw(holder.id().cast_signed())];
        assert_eq!(removed_bytes(&roots), 0);
        fs::remove_file(&path).unwrap();
        assert!(removed_bytes(&roots) >= 4 << 20);
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!(removed_bytes(&roots), 0);
    }

    #[test]
    fn a_removed_file_counts_while_a_process_has_it_mapped() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("sleep");
        fs::copy("/bin/sleep", &path).unwrap();
        let mut holder = std::process::Command::new(&path)
            .arg("600")
            .spawn()
            .unwrap();
        let roots = [Pid::from_raw(holder.id().cast_signed())];
        assert_eq!(removed_bytes(&roots), 0);
        fs::remove_file(&path).unwrap();
        let mut mapped = fs::read_dir(format!("/proc/{}/map_files", holder.id())).unwrap();
        let may_look = mapped.any(|file| fs::metadata(file.unwrap().path()).is_ok());
        assert_eq!(removed_bytes(&roots) > 0, may_look);
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!(removed_bytes(&roots), 0);
    }

    #[test]
    fn a_folder_in_which_nothing_can_be_seen_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut deep = fs::File::open(folder.path()).unwrap();
        // Deeper than any path that the system accepts.
        for _ in 0..100 {
            let name = "n".repeat(60);
            nix::sys::stat::mkdirat(&deep, &*name, nix::sys::stat::Mode::S_IRWXU).unwrap();
            let flags = nix::fcntl::OFlag::O_DIRECTORY;
            let mode = nix::sys::stat::Mode::empty();
            deep = nix::fcntl::openat(&deep, &*name, flags, mode)
                .unwrap()
                .into();
        }
        assert!(used_bytes(vec![folder.path().to_owned()], u64::MAX).is_err());
    }
}
