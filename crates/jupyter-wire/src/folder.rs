//! Folders for sockets and other things that only one process and its children may see.
//!
//! The owner holds a lock on a file in the folder for as long as it lives; the operating system
//! releases the lock however the owner ends. A folder whose lock is free belonged to a process that
//! was killed, and the next owner removes it.
//!
//! **Invariant:** only folders are removed that belong to this user and were made by this module
//! for the same purpose.

use baton_removal::remove_tree_with_last;
use nix::unistd::geteuid;
use std::{
    ffi::OsStr,
    fs::{DirBuilder, File},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};
use tokio::runtime::{Handle, RuntimeFlavor};

const PREFIX: &str = "baton-";
/// The file that distinguishes a folder of this module from all others.
const LOCK: &str = ".owner-lock";
/// The address of a Unix socket has at most 107 bytes and a zero.
const LONGEST_SOCKET_PATH_BYTES: usize = 107;
/// Space for the longest name of a socket in the folder.
const SOCKET_NAME_BYTES: usize = 24;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    #[error("Failed to create a private folder in {base}")]
    Create {
        base: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "No folder has a path short enough for sockets; tried {tried:?}\n\
         hint: set XDG_RUNTIME_DIR to a folder with a short path"
    )]
    PathsTooLong { tried: Vec<PathBuf> },
}

/// A folder that only this user can enter. Dropping this removes the folder, in the background on a runtime with
/// several threads.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    /// Closing the file releases the lock. `None` only while this is being dropped.
    lock: Option<File>,
}

impl PrivateFolder {
    /// Creates a folder in `$XDG_RUNTIME_DIR`, or else in the folder for temporary files. `purpose`
    /// becomes part of its name.
    pub fn create(purpose: &str) -> Result<Self, FolderError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let bases = runtime
            .into_iter()
            .filter(|base| base.is_absolute() && is_writable_folder(base))
            .chain([std::env::temp_dir(), PathBuf::from("/tmp")]);
        let mut tried = Vec::new();
        for base in bases {
            let longest = base.join(name(purpose)).as_os_str().as_bytes().len() + SOCKET_NAME_BYTES;
            if longest <= LONGEST_SOCKET_PATH_BYTES {
                return Self::create_in(&base, purpose);
            }
            tried.push(base);
        }
        Err(FolderError::PathsTooLong { tried })
    }

    /// Creates a folder in `base`, and first removes those that dead owners left there.
    pub fn create_in(base: &Path, purpose: &str) -> Result<Self, FolderError> {
        sweep(base, purpose);
        let path = base.join(name(purpose));
        let create = || {
            DirBuilder::new().mode(0o700).create(&path)?;
            // Lock it before its final name exists, so that no other process takes this folder for
            // one without an owner.
            let unfinished = path.join("lock");
            let lock = File::create_new(&unfinished)?;
            lock.lock()?;
            std::fs::rename(unfinished, path.join(LOCK))?;
            Ok(lock)
        };
        match create() {
            Ok(lock) => Ok(Self {
                path,
                lock: Some(lock),
            }),
            Err(source) => Err(FolderError::Create {
                base: base.to_owned(),
                source,
            }),
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        remove_in_background(Remains {
            path: std::mem::take(&mut self.path),
            lock: self.lock.take(),
        });
    }
}

/// Removes a folder without blocking others: on a worker, programs may have put any number of files into it.
///
/// A runtime with one thread serves one notebook, whose proxy is the only one that writes into its folder. It ends as
/// soon as this returns.
fn remove_in_background(remains: Remains) {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
            drop(runtime.spawn_blocking(|| drop(remains)));
        }
        _ => drop(remains),
    }
}

/// A folder that is removed when this is dropped, also by a runtime that ends before it has a thread for it.
struct Remains {
    path: PathBuf,
    /// Keeps other processes from removing it at the same time.
    lock: Option<File>,
}

impl Drop for Remains {
    fn drop(&mut self) {
        if let Err(error) = remove_tree_with_last(&self.path, OsStr::new(LOCK)) {
            tracing::warn!(%error, path = %self.path.display(), "Failed to remove a private folder");
            // This process keeps the lock, so that only a later one tries again.
            std::mem::forget(self.lock.take());
        }
    }
}

fn name(purpose: &str) -> String {
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{PREFIX}{purpose}-{}", &random[..12])
}

fn is_writable_folder(path: &Path) -> bool {
    path.is_dir() && nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_ok()
}

/// Removes folders that dead owners left, in the background if there is a runtime.
pub fn sweep(base: &Path, purpose: &str) {
    let Ok(entries) = std::fs::read_dir(base) else {
        return;
    };
    let prefix = format!("{PREFIX}{purpose}-");
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_name().as_bytes().starts_with(prefix.as_bytes())
            && let Some(lock) = stale_lock(&path)
        {
            tracing::info!(path = %path.display(), "Removing a folder whose owner is gone");
            remove_in_background(Remains {
                path,
                lock: Some(lock),
            });
        }
    }
}

/// Takes the lock of a folder whose owner is dead. A folder without a lock file is being made at this moment, or is
/// not one of ours.
fn stale_lock(path: &Path) -> Option<File> {
    let folder = path.symlink_metadata().ok()?;
    if !folder.is_dir() || folder.uid() != geteuid().as_raw() || folder.mode() & 0o777 != 0o700 {
        return None;
    }
    // Where locks do not work, the owner's state is unknown and the folder stays.
    let lock = File::open(path.join(LOCK)).ok()?;
    lock.try_lock().is_ok().then_some(lock)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_is_private_and_goes_with_its_owner() {
        let base = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::create_in(base.path(), "test").unwrap();
        let path = folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::write(path.join("something"), "x").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn only_folders_of_dead_owners_are_swept() {
        let base = tempfile::tempdir().unwrap();
        let make = |name: &str, lock: bool| {
            let path = base.path().join(name);
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            if lock {
                std::fs::write(path.join(LOCK), "").unwrap();
            }
            path
        };
        let living = PrivateFolder::create_in(base.path(), "test").unwrap();
        let dead = make("baton-test-1", true);
        let others = [
            make("baton-test-2", false),
            make("baton-other-1", true),
            make("test-1", true),
        ];
        let _next = PrivateFolder::create_in(base.path(), "test").unwrap();
        assert!(!dead.exists());
        assert!(living.path().exists() && others.iter().all(|other| other.exists()));
    }

    #[test]
    fn a_folder_is_removed_in_the_background_or_at_the_latest_with_the_runtime() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let base = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::create_in(base.path(), "test").unwrap();
        let path = folder.path().to_owned();
        let (release, released) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || released.recv());
        runtime.block_on(async { drop(folder) });
        assert!(path.exists());
        drop(release);
        drop(runtime);
        assert!(!path.exists());
    }

    #[test]
    fn socket_paths_stay_short() {
        let folder = PrivateFolder::create("test").unwrap();
        let socket = folder.path().join("x".repeat(SOCKET_NAME_BYTES - 1));
        assert!(socket.as_os_str().as_bytes().len() <= LONGEST_SOCKET_PATH_BYTES);
    }
}
