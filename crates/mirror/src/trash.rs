//! Keeps what cells deleted or replaced in the notebook's folder for a while.
//!
//! ```text
//! trash/1732380000000-1a2b3c4d/deleted/data/train.csv
//!       when, and which cell   why     where it was
//! ```
//!
//! Files arrive here by renaming, so that a process that is killed at any moment leaves them where
//! `baton files restore` finds them. Therefore the trash is in the state folder if that is on the
//! notebook's file system, and otherwise in `.baton` beside the notebook.
//!
//! **Invariant:** only files in a trash are ever removed, and none of a cell that has not ended.

use crate::{
    folder::{Below, Folder, Place, Status, is_absent},
    places::move_file,
    walk::{TRASH, below},
};
use baton_protocol::files::RelativePath;
use std::{
    ffi::OsString,
    fmt,
    fs::{DirBuilder, File, TryLockError},
    io::{self, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The possible places of the trash for one notebook's folder.
#[derive(Debug, Clone)]
pub struct Trash {
    folder: PathBuf,
    elsewhere: PathBuf,
}

/// How much to keep; the oldest is removed first.
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
    /// Kept until it has its new name.
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
    /// The file's former path below the notebook's folder.
    pub path: RelativePath,
    /// Since 1970.
    pub at_ms: i64,
    pub was: Was,
    pub bytes: u64,
    lies: Below,
}

impl Trash {
    #[must_use]
    pub fn of(folder: &Path, state_folder: &Path) -> Self {
        let hash = baton_chunks::hash(folder.as_os_str().as_bytes()).to_string();
        Self {
            folder: folder.to_owned(),
            elsewhere: state_folder.join("trash").join(&hash[..16]),
        }
    }

    /// Makes an entry for what one cell takes away.
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
        TrashEntry::create(&Folder::open(&self.elsewhere)?)
    }

    fn begin_beside(&self) -> io::Result<TrashEntry> {
        TrashEntry::create(&make_private(&Folder::open(&self.folder)?)?)
    }

    /// Whether a file in the notebook's folder can be renamed into this entry.
    fn is_near(&self, entry: &TrashEntry) -> bool {
        let home = Folder::open(&self.folder).and_then(|folder| folder.status());
        let trash = entry.folder.status();
        matches!((home, trash), (Ok(home), Ok(trash)) if home.device == trash.device)
    }

    /// All files in the trash, newest first.
    pub fn kept(&self) -> io::Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for entry in self.entries()? {
            for was in Was::ALL {
                let Some(folder) = entry.folder_of(was)? else {
                    continue;
                };
                visit(&folder, None, &mut |path, status| {
                    let lies = [was.to_string().as_bytes(), b"/", path.as_bytes()].concat();
                    kept.push(Kept {
                        path: path.clone(),
                        at_ms: entry.at_ms,
                        was,
                        bytes: status.bytes,
                        lies: entry.below(&lies)?,
                    });
                    Ok(())
                })?;
            }
        }
        kept.sort_by(|one, other| (other.at_ms, &one.path).cmp(&(one.at_ms, &other.path)));
        Ok(kept)
    }

    /// Removes what exceeds the limits, oldest first. What the last cell took away stays whatever its size, and does not
    /// count: the student may just have been told how to restore it.
    pub fn tidy(&self, limits: TrashLimits) -> io::Result<()> {
        let oldest_ms =
            now_ms().saturating_sub(limits.age.as_millis().try_into().unwrap_or(i64::MAX));
        let mut total: u64 = 0;
        let mut last = true;
        for entry in self.entries()? {
            let folder = match entry.trash.child(&entry.name).folder() {
                Err(error) if is_absent(&error) => continue,
                folder => folder?,
            };
            // A cell that has not ended may still restore all of it.
            let lock = folder.readable().map(File::from);
            let in_use =
                lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
            if in_use {
                continue;
            }
            let mut bytes: u64 = 0;
            if !std::mem::take(&mut last) {
                visit(&folder, None, &mut |_, status| {
                    bytes = bytes.saturating_add(status.bytes);
                    Ok(())
                })?;
            }
            let with_it = total.saturating_add(bytes);
            if with_it > limits.bytes || entry.at_ms < oldest_ms {
                entry.trash.child(&entry.name).remove_tree()?;
            } else {
                total = with_it;
            }
        }
        Ok(())
    }

    /// All entries, newest first.
    fn entries(&self) -> io::Result<Vec<Entry>> {
        let beside = Folder::open(&self.folder).and_then(|folder| folder.child(TRASH).folder());
        let beside = beside.and_then(|folder| folder.child("trash").folder());
        let mut entries = Vec::new();
        for trash in [beside, Folder::open(&self.elsewhere)] {
            let trash = match trash {
                Err(error) if is_absent(&error) => continue,
                trash => trash?,
            };
            trash.each_name(|name| {
                let at_ms = name
                    .to_str()
                    .and_then(|name| name.split('-').next()?.parse().ok());
                entries.extend(at_ms.map(|at_ms| Entry {
                    at_ms,
                    trash: trash.clone(),
                    name: name.to_owned(),
                }));
                Ok(true)
            })?;
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.at_ms));
        Ok(entries)
    }
}

struct Entry {
    at_ms: i64,
    trash: Folder,
    name: OsString,
}

impl Entry {
    /// The folder of what this entry's cell took away for this reason.
    fn folder_of(&self, was: Was) -> io::Result<Option<Folder>> {
        match self.below(was.to_string().as_bytes())?.place()?.folder() {
            Ok(folder) => Ok(Some(folder)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn below(&self, path: &[u8]) -> io::Result<Below> {
        let path = [self.name.as_bytes(), b"/", path].concat();
        Ok(Below {
            folder: self.trash.clone(),
            path: RelativePath::new(path).map_err(io::Error::other)?,
        })
    }
}

impl Kept {
    /// Restores the file. An existing file at its path goes to the trash.
    pub fn restore(&self, folder: &Path, trash: &Trash) -> io::Result<()> {
        let home = Folder::open(folder)?;
        if let Some(parent) = self.path.parent() {
            home.make_folders(&parent)?;
        }
        let place = home.at(&self.path)?;
        if let Some(there) = place.present()? {
            if there.is_folder() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let entry = trash.begin()?;
            let taken = entry.place_for(Was::Replaced, &self.path)?;
            move_file(&place, &taken.place()?)?;
        }
        move_file(&self.lies.place()?, &place)
    }
}

/// What one cell has taken away.
#[derive(Debug)]
pub(crate) struct TrashEntry {
    place: Place,
    folder: Folder,
    /// Held for as long as all of it may be restored.
    _lock: File,
}

impl TrashEntry {
    fn create(trash: &Folder) -> io::Result<Self> {
        let random = uuid::Uuid::new_v4().simple().to_string();
        let place = trash.child(format!("{}-{}", now_ms(), &random[..8]));
        place.make_folder(0o777)?;
        let folder = place.folder()?;
        Ok(Self {
            place,
            _lock: folder.lock()?,
            folder,
        })
    }

    /// Returns a free place in the trash, and makes its folder.
    pub(crate) fn place_for(&self, was: Was, path: &RelativePath) -> io::Result<Below> {
        let path = [was.to_string().as_bytes(), b"/", path.as_bytes()].concat();
        let path = RelativePath::new(path).map_err(io::Error::other)?;
        if let Some(parent) = path.parent() {
            self.folder.make_folders(&parent)?;
        }
        let folder = self.folder.clone();
        match folder.at(&path)?.present()? {
            None => Ok(Below { folder, path }),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

impl Drop for TrashEntry {
    /// Removes folders that are empty because their files were restored.
    fn drop(&mut self) {
        remove_empty(&self.place);
    }
}

/// Makes the trash beside the notebook, hidden from other users and from version control.
fn make_private(home: &Folder) -> io::Result<Folder> {
    let private = home.child(TRASH);
    if private.present()?.is_none() {
        private.make_folder(0o700)?;
        let mut ignored = private.folder()?.child(".gitignore").create_file()?;
        ignored.write_all(b"*\n")?;
    }
    let trash = private.folder()?.child("trash");
    match trash.make_folder(0o700) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => trash.folder(),
    }
}

/// Calls `each` for every file and link below this folder; skips those that disappear meanwhile.
fn visit(
    folder: &Folder,
    path: Option<&RelativePath>,
    each: &mut dyn FnMut(&RelativePath, &Status) -> io::Result<()>,
) -> io::Result<()> {
    folder.each_name(|name| {
        let place = folder.child(name);
        let path = below(path, name)?;
        match place.present()? {
            Some(status) if status.is_folder() => visit(&place.folder()?, Some(&path), each)?,
            Some(status) => each(&path, &status)?,
            None => {}
        }
        Ok(true)
    })
}

/// Removes empty folders; the others stay.
fn remove_empty(place: &Place) {
    if let Ok(folder) = place.folder() {
        let _ = folder.each_name(|name| {
            remove_empty(&folder.child(name));
            Ok(true)
        });
        let _ = place.remove_folder();
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since.as_millis().try_into().unwrap_or(i64::MAX)
}
