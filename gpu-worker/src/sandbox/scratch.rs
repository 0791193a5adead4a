//! A session's own place for temporary files, its home and its shared memory, where it has no mounts of its own.
//!
//! **Invariant:** it is gone when its session is, also that of a worker that was killed: the next one removes it.

use std::fs;
use std::path::{Path, PathBuf};

use baton_jupyter_wire::folder::{FolderError, PrivateFolder};
use tokio::process::Command;

const PURPOSE: &str = "scratch";
const SHARED_MEMORY: &str = "/dev/shm";

/// Folders in which libraries keep what they may lose. Without these variables they use the home.
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
        // In memory, where the machine has a place for that.
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

    /// What the session may write to.
    pub(super) fn writable(&self) -> [PathBuf; 2] {
        [self.home(), self.temporary()]
    }

    fn home(&self) -> PathBuf {
        self.files.path().join("home")
    }

    fn temporary(&self) -> PathBuf {
        self.files.path().join("tmp")
    }

    /// What it finds as `/dev/shm`, with the worker's help.
    pub(super) fn shared_memory(&self) -> PathBuf {
        self.memory.path().join("shm")
    }

    /// Variables that name folders which the session does not have. `may_read`: whether it can read one as it is.
    pub(super) fn settle(&self, command: &mut Command, may_read: impl Fn(&Path) -> bool) {
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
