//! Folders for a session under Landlock: its temporary files, its home and its shared memory. (Bubblewrap mounts these
//! in memory instead.)
//!
//! **Invariant:** the folders are removed with their session. If the worker is killed, the next worker removes them.

use baton_jupyter_wire::folder::{FolderError, PrivateFolder};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tokio::process::Command;

const PURPOSE: &str = "scratch";
const SHARED_MEMORY: &str = "/dev/shm";

/// Variables that name folders for caches and settings. If such a variable is not set, libraries use the home.
const CACHES: &[&str] = super::view::CACHES;

#[derive(Debug)]
pub(crate) struct Scratch {
    files: PrivateFolder,
    memory: PrivateFolder,
}

impl Scratch {
    pub(super) fn create() -> Result<Self, FolderError> {
        let base = std::env::temp_dir();
        let files = PrivateFolder::create_in(&base, PURPOSE)?;
        // In memory, if the machine has `/dev/shm`.
        let memory = PrivateFolder::create_in(Path::new(SHARED_MEMORY), PURPOSE)
            .or_else(|_| PrivateFolder::create_in(&base, PURPOSE))?;
        let scratch = Self { files, memory };
        for folder in [scratch.home(), scratch.temporary(), scratch.shared_memory()] {
            fs::create_dir(&folder).map_err(|source| FolderError::Create {
                base: folder.clone(),
                source,
            })?;
        }
        Ok(scratch)
    }

    /// The folders to which the session may write. Shared memory is not among them, because the worker opens its files
    /// for the session.
    pub(crate) fn writable(&self) -> [PathBuf; 2] {
        [self.home(), self.temporary()]
    }

    fn home(&self) -> PathBuf {
        self.files.path().join("home")
    }

    fn temporary(&self) -> PathBuf {
        self.files.path().join("tmp")
    }

    /// The folder whose files the session finds in `/dev/shm`: the worker opens them when the session opens such a
    /// name.
    pub(super) fn shared_memory(&self) -> PathBuf {
        self.memory.path().join("shm")
    }

    /// Sets the variables that name these folders, and removes those that name folders which the session cannot read.
    /// `may_read`: whether the session may read a path.
    pub(super) fn set_variables(&self, command: &mut Command, may_read: impl Fn(&Path) -> bool) {
        let caches: Vec<_> = command
            .as_std()
            .get_envs()
            .filter_map(|(name, value)| {
                let is_cache = CACHES.iter().any(|cache| name == *cache);
                (is_cache && !may_read(Path::new(value?))).then(|| name.to_owned())
            })
            .collect();
        for name in caches {
            command.env_remove(name);
        }
        command
            .env("HOME", self.home())
            .env("TMPDIR", self.temporary())
            .env("JOBLIB_TEMP_FOLDER", self.temporary())
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("JUPYTER_RUNTIME_DIR");
    }
}
