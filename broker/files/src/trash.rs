//! What cells deleted or replaced in the notebook's folder, for a while.
//!
//! ```text
//! trash/1732380000000-1a2b3c4d/deleted/data/train.csv
//!       when, and which cell   why     where it was
//! ```
//!
//! Files come here by renaming, so that a process that is killed at any moment leaves them where `baton files restore`
//! finds them. So the trash is in the state folder where that is on the notebook's file system, and otherwise in `.baton`
//! beside the notebook.
//!
//! **Invariant:** only what lies in a trash is ever removed, and nothing of a cell that is not over.

use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_protocol::files::RelativePath;

use crate::home::places::{move_file, present};
use crate::walk::TRASH;

/// Where one notebook's folder has its trash.
#[derive(Debug, Clone)]
pub struct Trash {
    folder: PathBuf,
    beside: PathBuf,
    elsewhere: PathBuf,
}

/// What is kept; the oldest goes first.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrashLimits {
    pub bytes: u64,
    pub age: Duration,
}

/// Why a file is in the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Was {
    Deleted,
    Replaced,
    /// Until it has its new name.
    Renamed,
}

impl Was {
    const ALL: [Self; 3] = [Self::Deleted, Self::Replaced, Self::Renamed];
}

impl fmt::Display for Was {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Deleted => "deleted",
            Self::Replaced => "replaced",
            Self::Renamed => "renamed",
        })
    }
}

/// A file or link in the trash.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Where it was, below the notebook's folder.
    pub path: RelativePath,
    /// Since 1970.
    pub at_ms: i64,
    pub was: Was,
    pub bytes: u64,
    place: PathBuf,
}

impl Trash {
    #[must_use]
    pub fn of(folder: &Path, state_folder: &Path) -> Self {
        let hash = baton_blobs::hash(folder.as_os_str().as_bytes()).to_string();
        Self {
            folder: folder.to_owned(),
            beside: folder.join(TRASH).join("trash"),
            elsewhere: state_folder.join("trash").join(&hash[..16]),
        }
    }

    /// Room for what one cell takes away.
    pub(crate) fn begin(&self) -> io::Result<TrashEntry> {
        match self.begin_elsewhere() {
            Ok(entry) if self.is_near(&entry) => Ok(entry),
            elsewhere => self.begin_beside().or(elsewhere),
        }
    }

    fn begin_elsewhere(&self) -> io::Result<TrashEntry> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.elsewhere)?;
        TrashEntry::create(&self.elsewhere)
    }

    fn begin_beside(&self) -> io::Result<TrashEntry> {
        make_private(&self.beside)?;
        TrashEntry::create(&self.beside)
    }

    /// Whether a file of the notebook's folder can be renamed to there.
    fn is_near(&self, entry: &TrashEntry) -> bool {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
        matches!((device(&self.folder), device(&entry.folder)), (Ok(one), Ok(other)) if one == other)
    }

    /// All that is there, the newest first.
    pub fn kept(&self) -> io::Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for entry in self.entries()? {
            for was in Was::ALL {
                let folder = entry.folder.join(was.to_string());
                visit(&folder, &mut |place, metadata| {
                    let path = place
                        .strip_prefix(&folder)
                        .map(|path| path.as_os_str().as_bytes());
                    if let Some(path) = path.ok().and_then(|path| RelativePath::new(path).ok()) {
                        kept.push(Kept {
                            path,
                            at_ms: entry.at_ms,
                            was,
                            bytes: metadata.len(),
                            place: place.to_owned(),
                        });
                    }
                })?;
            }
        }
        kept.sort_by(|one, other| (other.at_ms, &one.path).cmp(&(one.at_ms, &other.path)));
        Ok(kept)
    }

    /// Removes what is too old, and the oldest of what is too much.
    pub fn tidy(&self, limits: TrashLimits) -> io::Result<()> {
        let oldest_ms =
            now_ms().saturating_sub(limits.age.as_millis().try_into().unwrap_or(i64::MAX));
        let mut total: u64 = 0;
        for entry in self.entries()? {
            let mut bytes: u64 = 0;
            visit(&entry.folder, &mut |_, metadata| bytes += metadata.len())?;
            total = total.saturating_add(bytes);
            if total <= limits.bytes && entry.at_ms >= oldest_ms {
                continue;
            }
            // A cell that is not over may still take everything back.
            let lock = File::open(&entry.folder);
            let in_use =
                lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
            if !in_use {
                remove(&entry.folder)?;
                total -= bytes;
            }
        }
        Ok(())
    }

    /// Newest first.
    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for trash in [&self.beside, &self.elsewhere] {
            let listed = match fs::read_dir(trash) {
                Ok(listed) => listed,
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(error),
            };
            for entry in listed {
                let entry = entry?;
                let name = entry.file_name();
                let at_ms = name
                    .to_str()
                    .and_then(|name| name.split('-').next()?.parse().ok());
                entries.extend(at_ms.map(|at_ms| Entry {
                    at_ms,
                    folder: entry.path(),
                }));
            }
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.at_ms));
        Ok(entries)
    }
}

struct Entry {
    at_ms: i64,
    folder: PathBuf,
}

impl Kept {
    /// Puts it back. What is there now takes its place in the trash.
    pub fn restore(&self, folder: &Path, trash: &Trash) -> io::Result<()> {
        let place = folder.join(self.path.as_path());
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        if let Some(there) = present(&place)? {
            if there.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let entry = trash.begin()?;
            move_file(&place, &entry.place_for(Was::Replaced, &self.path)?)?;
        }
        move_file(&self.place, &place)
    }
}

/// What one cell takes away.
#[derive(Debug)]
pub(crate) struct TrashEntry {
    folder: PathBuf,
    /// Held as long as all of it may be taken back.
    _lock: File,
}

impl TrashEntry {
    fn create(trash: &Path) -> io::Result<Self> {
        let random = uuid::Uuid::new_v4().simple().to_string();
        let folder = trash.join(format!("{}-{}", now_ms(), &random[..8]));
        fs::create_dir(&folder)?;
        let lock = File::open(&folder)?;
        // Some file systems know no locks.
        if let Err(error) = lock.try_lock() {
            tracing::debug!(%error, "A trash folder is not locked");
        }
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    /// Nothing is there yet, and its folder is.
    pub(crate) fn place_for(&self, was: Was, path: &RelativePath) -> io::Result<PathBuf> {
        let place = self.folder.join(was.to_string()).join(path.as_path());
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        match present(&place)? {
            None => Ok(place),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

impl Drop for TrashEntry {
    /// What was taken back leaves empty folders.
    fn drop(&mut self) {
        remove_empty(&self.folder);
    }
}

/// Beside the notebook, where neither other people nor version control look into it.
fn make_private(trash: &Path) -> io::Result<()> {
    let folder = trash.parent().unwrap_or(trash);
    match present(folder)? {
        None => {
            DirBuilder::new().mode(0o700).create(folder)?;
            fs::write(folder.join(".gitignore"), "*\n")?;
        }
        Some(there) if there.is_dir() => {}
        Some(_) => return Err(io::ErrorKind::NotADirectory.into()),
    }
    match DirBuilder::new().mode(0o700).create(trash) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Every file and link below, and none that vanishes meanwhile.
fn visit(folder: &Path, each: &mut dyn FnMut(&Path, &Metadata)) -> io::Result<()> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for entry in listed {
        let path = entry?.path();
        match present(&path)? {
            Some(metadata) if metadata.is_dir() => visit(&path, each)?,
            Some(metadata) => each(&path, &metadata),
            None => {}
        }
    }
    Ok(())
}

/// Another notebook of the same folder may do the same.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // Whatever is not empty stays.
    let _ = fs::remove_dir(folder);
}

/// Also where a file of the student's has the name of a folder on the way.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since.as_millis().try_into().unwrap_or(i64::MAX)
}
