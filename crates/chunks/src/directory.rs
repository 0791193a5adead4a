//! Chunks in a folder, each in a file named after its hash.
//!
//! A chunk is written under a temporary name and then renamed, so a program that dies meanwhile leaves no
//! partial chunk under a valid name. Damage from a crash of the machine or a bad disk is found on reading,
//! because the hash is verified; a damaged chunk is removed and counts as missing.
//!
//! The broker opens the folder as a store, which refuses chunks beyond its limit. A worker opens
//! its own as a cache, which makes room by removing the least recently used chunks. A file's
//! modification time is the time of its last use.

use crate::{StateError, hash};
use baton_protocol::{CHUNK_BYTES, ChunkHash, counted_bytes};
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

/// The folder for chunks that are being written.
const UNFINISHED: &str = "unfinished";

/// Older files are abandoned: writing one chunk never takes this long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// How full a cache is after making room, so that it does not scan its folder for every chunk.
const CACHE_KEEPS_PERCENT: u64 = 90;

pub struct ChunkDirectory {
    root: PathBuf,
    limit_bytes: u64,
    used_bytes: AtomicU64,
    when_full: WhenFull,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    Refuse,
    RemoveOldest,
}

/// A chunk in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredChunk {
    pub hash: ChunkHash,
    pub bytes: u64,
    pub last_used: SystemTime,
}

impl ChunkDirectory {
    /// Opens a store. Once its chunks count as `limit_bytes`, [`Self::put`] returns [`StateError::Full`].
    pub fn open(root: PathBuf, limit_bytes: u64) -> Result<Self, StateError> {
        Self::open_as(root, limit_bytes, WhenFull::Refuse)
    }

    /// Opens a cache, which makes room by removing the least recently used chunks.
    pub fn open_cache(root: PathBuf, limit_bytes: u64) -> Result<Self, StateError> {
        Self::open_as(root, limit_bytes, WhenFull::RemoveOldest)
    }

    fn open_as(root: PathBuf, limit_bytes: u64, when_full: WhenFull) -> Result<Self, StateError> {
        let unfinished = root.join(UNFINISHED);
        create_private(&unfinished).map_err(failed(&unfinished))?;
        remove_forgotten(&unfinished)?;
        let directory = Self {
            root,
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            when_full,
        };
        directory.list()?;
        Ok(directory)
    }

    /// Stores a chunk. If it exists already with all its bytes, marks it as used.
    pub fn put(&self, bytes: &[u8]) -> Result<ChunkHash, StateError> {
        if bytes.len() > CHUNK_BYTES {
            return Err(StateError::TooLarge { bytes: bytes.len() });
        }
        let hash = hash(bytes);
        match self.size(hash) {
            Some(size) if size != bytes.len() as u64 => self.remove(hash)?,
            Some(_) if touch(&self.path(hash)) => return Ok(hash),
            _ => {}
        }
        self.make_room(counted_bytes(bytes.len() as u64))?;
        match self.write(hash, bytes) {
            Err(error) if is_full(&error) && self.when_full == WhenFull::RemoveOldest => {
                self.remove_oldest(self.used_bytes() / 2)?;
                self.write(hash, bytes)
            }
            result => result,
        }
        .map_err(|source| self.write_failed(source))?;
        Ok(hash)
    }

    /// Stores a chunk if that is possible. The log says why it is not.
    pub fn keep(&self, bytes: &[u8]) {
        if let Err(error) = self.put(bytes) {
            tracing::warn!(%error, "A chunk could not be stored in {}", self.root.display());
        }
    }

    /// Writes these chunks to the disk, so that they survive a crash of the machine. Fails if one does not exist.
    pub fn sync(&self, hashes: &[ChunkHash]) -> Result<(), StateError> {
        let files = hashes.iter().map(|hash| self.path(*hash));
        let folders: BTreeSet<PathBuf> = files
            .clone()
            .filter_map(|path| path.parent().map(Path::to_owned))
            .chain([self.root.clone()])
            .collect();
        for path in files.chain(folders) {
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(failed(&path))?;
        }
        Ok(())
    }

    /// Returns the verified bytes of a chunk. What a cache cannot read counts as missing.
    pub fn get(&self, hash: ChunkHash) -> Result<Option<Bytes>, StateError> {
        match self.read(hash) {
            Err(error) if self.when_full == WhenFull::RemoveOldest => {
                tracing::warn!(%error, "A cached chunk cannot be read");
                Ok(None)
            }
            read => read,
        }
    }

    fn read(&self, hash: ChunkHash) -> Result<Option<Bytes>, StateError> {
        let path = self.path(hash);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateError::Directory { path, source }),
        };
        if crate::hash(&bytes) != hash {
            tracing::warn!(chunk.path = %path.display(), "A stored chunk is damaged and was removed");
            self.remove(hash)?;
            return Ok(None);
        }
        if self.when_full == WhenFull::RemoveOldest {
            touch(&path);
        }
        Ok(Some(Bytes::from(bytes)))
    }

    #[must_use]
    pub fn contains(&self, hash: ChunkHash) -> bool {
        self.size(hash).is_some()
    }

    /// The size of a chunk's file. After a crash of the machine, it may be shorter than the chunk.
    #[must_use]
    pub fn size(&self, hash: ChunkHash) -> Option<u64> {
        let metadata = fs::metadata(self.path(hash)).ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    /// Removes a chunk. Does nothing if it does not exist.
    pub fn remove(&self, hash: ChunkHash) -> Result<(), StateError> {
        let path = self.path(hash);
        let bytes = fs::metadata(&path).map_or(0, |metadata| counted_bytes(metadata.len()));
        match fs::remove_file(&path) {
            Ok(()) => {
                self.subtract(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(StateError::Directory { path, source }),
        }
    }

    /// All chunks, in no particular order.
    pub fn list(&self) -> Result<Vec<StoredChunk>, StateError> {
        let mut chunks = Vec::new();
        for shard in entries(&self.root)? {
            if shard.file_name() == Some(UNFINISHED.as_ref()) || !shard.is_dir() {
                continue;
            }
            chunks.extend(entries(&shard)?.iter().filter_map(|path| stored(path)));
        }
        let bytes = chunks.iter().map(|chunk| counted_bytes(chunk.bytes)).sum();
        self.used_bytes.store(bytes, Ordering::Relaxed);
        Ok(chunks)
    }

    /// What all chunks count together, as far as this process knows.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn make_room(&self, bytes: u64) -> Result<(), StateError> {
        if self.used_bytes() + bytes <= self.limit_bytes {
            return Ok(());
        }
        if self.when_full == WhenFull::RemoveOldest && bytes <= self.limit_bytes {
            let keep = self.limit_bytes / 100 * CACHE_KEEPS_PERCENT;
            return self.remove_oldest(keep.min(self.limit_bytes - bytes));
        }
        Err(StateError::Full {
            root: self.root.clone(),
            limit_bytes: Some(self.limit_bytes),
        })
    }

    /// Removes the least recently used chunks until at most `keep_bytes` are left.
    fn remove_oldest(&self, keep_bytes: u64) -> Result<(), StateError> {
        let mut chunks = self.list()?;
        chunks.sort_unstable_by_key(|chunk| chunk.last_used);
        for chunk in chunks {
            if self.used_bytes() <= keep_bytes {
                break;
            }
            self.remove(chunk.hash)?;
        }
        Ok(())
    }

    fn write(&self, hash: ChunkHash, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(hash);
        if let Some(shard) = path.parent() {
            create_private(shard)?;
        }
        let mut file = tempfile::NamedTempFile::new_in(self.root.join(UNFINISHED))?;
        file.write_all(bytes)?;
        match file.persist_noclobber(path) {
            Ok(_) => {
                self.used_bytes
                    .fetch_add(counted_bytes(bytes.len() as u64), Ordering::Relaxed);
                Ok(())
            }
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error.error),
        }
    }

    fn write_failed(&self, source: io::Error) -> StateError {
        let root = self.root.clone();
        if is_full(&source) {
            let limit_bytes = None;
            StateError::Full { root, limit_bytes }
        } else {
            StateError::Directory { path: root, source }
        }
    }

    fn subtract(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _ = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Spreads the chunks over 256 folders, so that none becomes too long.
    fn path(&self, hash: ChunkHash) -> PathBuf {
        let name = hash.to_string();
        self.root.join(&name[..2]).join(name)
    }
}

fn create_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// Removes files of programs that died while writing. New files stay, because another program may
/// be writing them.
fn remove_forgotten(unfinished: &Path) -> Result<(), StateError> {
    for path in entries(unfinished)? {
        let written = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > FORGOTTEN_AFTER) {
            fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Marks a file as used now; false if it does not exist.
fn touch(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.set_modified(SystemTime::now()).is_ok())
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, StateError> {
    fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(failed(folder))
}

/// Describes a file, unless it is not a chunk or has disappeared meanwhile.
fn stored(path: &Path) -> Option<StoredChunk> {
    let hash = path.file_name()?.to_str()?.parse().ok()?;
    let metadata = fs::metadata(path).ok()?;
    Some(StoredChunk {
        hash,
        bytes: metadata.len(),
        last_used: metadata.modified().ok()?,
    })
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    |source| StateError::Directory { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn a_full_disk_is_not_just_any_failure() {
        for error in [Errno::ENOSPC, Errno::EDQUOT] {
            assert!(is_full(&error.into()), "{error}");
        }
        assert!(!is_full(&Errno::EIO.into()));
    }
}
