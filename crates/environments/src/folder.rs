//! A folder of environments, each in a folder of its own that is named after what it was built from.
//!
//! In: a key. Out: a complete environment that stays for as long as it is held, or an empty folder
//! to build it. One process builds it while others wait; if it is killed, the build starts again.
//!
//! ```text
//! FOLDER/KEY.lock        shared while a process uses it, exclusive while one builds or removes it
//! FOLDER/KEY/work/venv   the environment
//! FOLDER/KEY/complete    written last
//! ```
//!
//! **Invariant:** an environment is not removed while a process holds it.

use baton_removal::remove_tree;
use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio::task::spawn_blocking;

/// The pause between two checks of another process's build.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// If the disk has less space, a build first removes environments that no process holds.
const ROOM_BYTES: u64 = 10 << 30;

const COMPLETE: &str = "complete";
const WORK: &str = "work";
const ENVIRONMENT: &str = "venv";
const LOCK: &str = "lock";

#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used for environments: {source}", path.display())]
pub struct FolderError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A folder in which environments are built.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    kept: BTreeSet<String>,
}

/// The folder of one environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentFolder {
    root: PathBuf,
}

impl EnvironmentFolder {
    /// The folder with everything that a build writes.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.root.join(WORK)
    }

    #[must_use]
    pub fn environment(&self) -> PathBuf {
        self.work().join(ENVIRONMENT)
    }

    #[must_use]
    pub fn python(&self) -> PathBuf {
        self.environment().join("bin/python")
    }
}

/// A complete environment. It is not removed until this value is dropped or its process has ended.
#[derive(Debug)]
pub struct CompleteEnvironment {
    folder: EnvironmentFolder,
    _lock: File,
}

/// The answer to a process that asks for an environment.
#[derive(Debug)]
pub enum Taken {
    Complete(CompleteEnvironment),
    Empty(Vacant),
}

/// A folder in which only this process builds. If it is dropped before it is complete, the folder
/// becomes empty again.
#[derive(Debug)]
pub struct Vacant {
    folder: EnvironmentFolder,
    is_complete: bool,
    _lock: File,
}

impl Vacant {
    #[must_use]
    pub fn folder(&self) -> &EnvironmentFolder {
        &self.folder
    }

    /// Makes the environment available to others. Take it again to hold it.
    ///
    /// # Errors
    /// If the mark cannot be written.
    pub fn complete(mut self) -> Result<(), FolderError> {
        let path = self.folder.root.join(COMPLETE);
        fs::write(&path, "").map_err(|source| FolderError { path, source })?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Vacant {
    fn drop(&mut self) {
        if !self.is_complete {
            remove(&self.folder);
        }
    }
}

impl CompleteEnvironment {
    #[must_use]
    pub fn folder(&self) -> &EnvironmentFolder {
        &self.folder
    }
}

impl Folder {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let kept = BTreeSet::new();
        Self { path, kept }
    }

    /// Environments to keep even if no process holds them.
    #[must_use]
    pub fn keeping(self, kept: BTreeSet<String>) -> Self {
        Self { kept, ..self }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The environment with this key, if it is complete.
    #[must_use]
    pub fn complete(&self, key: &str) -> Option<EnvironmentFolder> {
        let root = self.path.join(key);
        root.join(COMPLETE)
            .exists()
            .then_some(EnvironmentFolder { root })
    }

    /// Removes the mark of completeness, so that the environment is built again when it is next taken.
    ///
    /// # Errors
    /// If a process holds it, or the mark cannot be removed.
    pub fn discard(&self, key: &str) -> Result<(), FolderError> {
        let discard = || {
            if !is_taken(self.lock(key)?.try_lock())? {
                return Err(io::Error::from(io::ErrorKind::ResourceBusy));
            }
            fs::remove_file(self.path.join(key).join(COMPLETE))
        };
        discard().map_err(|source| FolderError {
            path: self.path.join(key),
            source,
        })
    }

    /// Returns the environment with this key, or an empty folder for it once no other process builds it.
    ///
    /// # Errors
    /// If the folder itself cannot be used.
    pub async fn take(&self, key: &str) -> Result<Taken, FolderError> {
        loop {
            let (folder, own) = (self.clone(), key.to_owned());
            // In a blocking task, because the remains of a killed build may be large.
            let taken = spawn_blocking(move || folder.try_take(&own)).await;
            let taken = taken.map_err(io::Error::other).flatten();
            let taken = taken.map_err(|source| FolderError {
                path: self.path.clone(),
                source,
            })?;
            if let Some(taken) = taken {
                return Ok(taken);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn try_take(&self, key: &str) -> io::Result<Option<Taken>> {
        fs::create_dir_all(&self.path)?;
        let root = self.path.join(key);
        let complete = root.join(COMPLETE);
        let lock = self.lock(key)?;
        if is_taken(lock.try_lock_shared())? && complete.exists() {
            let file = File::options().write(true).open(complete);
            // Marks it as used, to find the least recently used one later.
            let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
            let folder = EnvironmentFolder { root };
            return Ok(Some(Taken::Complete(CompleteEnvironment {
                folder,
                _lock: lock,
            })));
        }
        drop(lock);
        let lock = self.lock(key)?;
        if !is_taken(lock.try_lock())? || complete.exists() {
            return Ok(None);
        }
        self.make_room(ROOM_BYTES, free_bytes);
        let folder = EnvironmentFolder { root };
        prepare(&folder)?;
        Ok(Some(Taken::Empty(Vacant {
            folder,
            is_complete: false,
            _lock: lock,
        })))
    }

    fn lock(&self, key: &str) -> io::Result<File> {
        let path = self.path.join(format!("{key}.{LOCK}"));
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
    }

    /// Removes environments that no process holds, the least recently used first, until there is enough space.
    fn make_room(&self, wanted_bytes: u64, free: impl Fn(&Path) -> u64) {
        let mut unused: Vec<(SystemTime, String)> = self.keys().collect();
        unused.sort_unstable();
        for (_, key) in unused {
            if free(&self.path) >= wanted_bytes {
                return;
            }
            if self.kept.contains(&key) {
                continue;
            }
            let Ok(lock) = self.lock(&key) else { continue };
            if matches!(lock.try_lock(), Ok(())) {
                tracing::info!(
                    "The environment {key} is removed: no worker offers it, and its disk has little room"
                );
                let root = self.path.join(&key);
                remove(&EnvironmentFolder { root });
            }
        }
    }

    /// The existing environments, each with the time when it was last used.
    fn keys(&self) -> impl Iterator<Item = (SystemTime, String)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name().into_string().ok()?;
            let complete = fs::metadata(entry.path().join(COMPLETE));
            let used = complete.and_then(|complete| complete.modified());
            is_folder.then(|| (used.unwrap_or(SystemTime::UNIX_EPOCH), name))
        })
    }
}

/// Returns `false` if another process holds the lock.
fn is_taken(taken: Result<(), TryLockError>) -> io::Result<bool> {
    match taken {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Makes an empty folder, without remains of an earlier build that was killed.
fn prepare(folder: &EnvironmentFolder) -> io::Result<()> {
    remove(folder);
    fs::create_dir_all(folder.environment())
}

/// Removes the mark first, so that a half-removed environment does not count as complete.
fn remove(folder: &EnvironmentFolder) {
    let _ = fs::remove_file(folder.root.join(COMPLETE));
    if let Err(error) = remove_tree(&folder.root) {
        let path = folder.root.display();
        tracing::warn!("{path} could not be removed: {error}");
    }
}

/// The free space on the folder's disk; unlimited if the system does not report it.
fn free_bytes(path: &Path) -> u64 {
    let statistics = nix::sys::statvfs::statvfs(path);
    statistics.map_or(u64::MAX, |found| {
        found
            .blocks_available()
            .saturating_mul(found.fragment_size())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("environments");
        (folder, Folder::new(path))
    }

    fn build(vacant: &Vacant) {
        let file = vacant.folder().environment().join("file");
        assert!(!file.exists(), "something of an earlier build is left");
        fs::write(file, "x").unwrap();
    }

    async fn take(folder: &Folder, key: &str) -> CompleteEnvironment {
        loop {
            match folder.take(key).await.unwrap() {
                Taken::Complete(held) => return held,
                Taken::Empty(vacant) => {
                    build(&vacant);
                    vacant.complete().unwrap();
                }
            }
        }
    }

    #[tokio::test]
    async fn an_environment_is_built_once_and_anew_after_a_build_that_was_killed() {
        let (_guard, folder) = folder();
        let left = folder.path.join("a/work/venv");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("file"), "half").unwrap();
        let held = take(&folder, "a").await;
        let file = held.folder().environment().join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), "x");
        let again = folder.take("a").await.unwrap();
        assert!(matches!(again, Taken::Complete(_)), "{again:?}");
    }

    #[tokio::test]
    async fn a_build_that_fails_leaves_nothing() {
        let (_guard, folder) = folder();
        let Taken::Empty(vacant) = folder.take("a").await.unwrap() else {
            panic!("nothing is there yet");
        };
        build(&vacant);
        drop(vacant);
        assert!(!folder.path.join("a").exists());
    }

    #[tokio::test]
    async fn of_two_builders_one_builds_and_the_other_waits() {
        let (_guard, folder) = folder();
        let Taken::Empty(vacant) = folder.take("a").await.unwrap() else {
            panic!("nothing is there yet");
        };
        assert!(folder.try_take("a").unwrap().is_none());
        build(&vacant);
        vacant.complete().unwrap();
        let Some(Taken::Complete(held)) = folder.try_take("a").unwrap() else {
            panic!("it is complete");
        };
        folder.discard("a").unwrap_err();
        assert!(
            matches!(folder.try_take("a").unwrap(), Some(Taken::Complete(other)) if other.folder() == held.folder())
        );
        drop(held);
        folder.discard("a").unwrap();
        assert!(matches!(
            folder.try_take("a").unwrap(),
            Some(Taken::Empty(_))
        ));
    }

    #[tokio::test]
    async fn room_is_made_of_what_nothing_holds_the_oldest_first() {
        let (_guard, folder) = folder();
        let held = take(&folder, "held").await;
        for key in ["new", "old"] {
            take(&folder, key).await;
        }
        let complete = File::options()
            .write(true)
            .open(folder.path.join("old/complete"));
        let complete = complete.unwrap();
        complete.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let there = |key: &str| folder.path.join(key).exists();
        let free = |_: &Path| u64::from(!there("old"));
        folder.make_room(1, free);
        let left = (there("held"), there("old"), there("new"));
        assert_eq!(left, (true, false, true));
        folder
            .clone()
            .keeping(["new".to_owned()].into())
            .make_room(9, |_| 0);
        assert!(there("held") && there("new"));
        folder.make_room(9, |_| 0);
        assert!(there("held") && !there("new"));
        drop(held);
        folder.make_room(9, |_| 0);
        assert!(!there("held"));
    }
}
