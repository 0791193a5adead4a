//! What a cell did to files, done again in the notebook's folder.
//!
//! Everything that arrives waits in a hidden folder beside the notebook. Then each file takes its place by renaming;
//! what was there goes to the trash, from where all of it can be taken back until it is kept. A file that
//! somebody else changed while the cell ran is never replaced: both versions stay, and a note says so.
//!
//! **Invariant:** no link is followed, and no change of somebody else is lost.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;

use baton_protocol::files::{Base, Change, Content, RelativePath, Stamp};

use super::arriving::Arriving;
use super::listing::stamp;
use super::places::{free_name, move_file, present, rename_or_copy};
use crate::errors::at;
use crate::links::inside;
use crate::trash::{Trash, TrashEntry, Was};
use crate::walk::STAGING;
use crate::{FilesError, Root};

/// Files that wait for their place.
#[derive(Debug)]
pub struct Staging {
    root: PathBuf,
    folder: PathBuf,
    trash: Trash,
    changes: Vec<(Change, Option<PathBuf>)>,
}

impl Staging {
    /// Fails where the notebook's folder is not the one that it was.
    pub fn create(root: &Root, trash: &Trash) -> Result<Self, FilesError> {
        root.check()?;
        let root = root.path();
        let folder = root.join(format!("{STAGING}{}", uuid::Uuid::new_v4().simple()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(at(&folder))?;
        Ok(Self {
            root: root.to_owned(),
            folder,
            trash: trash.clone(),
            changes: Vec::new(),
        })
    }

    /// Where the bytes of the change go, if it has any.
    pub fn add(&mut self, change: Change) -> Result<Option<(File, Content)>, FilesError> {
        let Change::Written { content, .. } = &change else {
            self.changes.push((change, None));
            return Ok(None);
        };
        let path = self.folder.join(format!("new-{}", self.changes.len()));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(at(&path))?;
        let content = content.clone();
        self.changes.push((change, Some(path)));
        Ok(Some((file, content)))
    }

    /// Puts everything in its place. What cannot be is left as it was, with a note for the student.
    #[must_use]
    pub fn commit(mut self) -> Committed {
        let changes = std::mem::take(&mut self.changes);
        let mut commit = Commit {
            root: self.root.clone(),
            staging: self,
            trash: None,
            deleted: 0,
            linked: 0,
            undo: Vec::new(),
            notes: Vec::new(),
            written: Vec::new(),
        };
        commit.all(changes);
        Committed {
            notes: commit.notes,
            written: commit.written,
            deleted: commit.deleted,
            undo: commit.undo,
            _staging: commit.staging,
            _trash: commit.trash,
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, "A folder for arriving files stays: {}", self.folder.display());
        }
    }
}

/// Dropping it keeps what was done.
#[derive(Debug)]
pub struct Committed {
    /// One line for each file that is not as the cell left it.
    pub notes: Vec<String>,
    /// Files that are here exactly as they are in the mirror.
    pub written: Vec<(RelativePath, Stamp)>,
    /// How many files and links are in the trash now because the cell deleted them.
    pub deleted: usize,
    undo: Vec<Undo>,
    _staging: Staging,
    _trash: Option<TrashEntry>,
}

impl Committed {
    /// Everything is as it was before.
    pub fn undo(mut self) {
        for step in self.undo.drain(..).rev() {
            if let Err(error) = step.run() {
                tracing::error!(%error, "A file could not be put back: {step:?}");
            }
        }
    }
}

#[derive(Debug)]
enum Undo {
    Rename { from: PathBuf, to: PathBuf },
    RemoveFolder(PathBuf),
    MakeFolder(PathBuf, Permissions),
    SetMode(PathBuf, Permissions),
}

impl Undo {
    fn run(&self) -> io::Result<()> {
        match self {
            Self::Rename { from, to } => rename_or_copy(from, to),
            Self::RemoveFolder(path) => fs::remove_dir(path),
            Self::MakeFolder(path, mode) => {
                fs::create_dir(path)?;
                fs::set_permissions(path, mode.clone())
            }
            Self::SetMode(path, mode) => fs::set_permissions(path, mode.clone()),
        }
    }
}

struct Commit {
    root: PathBuf,
    staging: Staging,
    /// Made when something is taken away.
    trash: Option<TrashEntry>,
    deleted: usize,
    linked: usize,
    undo: Vec<Undo>,
    notes: Vec<String>,
    written: Vec<(RelativePath, Stamp)>,
}

/// What is not done, and why.
enum Not {
    Changed,
    Io(io::Error),
}

impl From<io::Error> for Not {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Commit {
    /// First what goes away, then what takes its place.
    fn all(&mut self, changes: Vec<(Change, Option<PathBuf>)>) {
        let mut arriving = Vec::new();
        let mut emptied = Vec::new();
        let mut folders = Vec::new();
        let mut modes = Vec::new();
        for (change, file) in changes {
            match change {
                Change::Removed { path, base } => {
                    let taken = self.take(&path, &base, Was::Deleted);
                    self.deleted += usize::from(matches!(taken, Ok(Some(_))));
                    self.note(&path, taken.map(drop), "was deleted by the cell");
                }
                Change::Moved {
                    from,
                    base,
                    path,
                    over,
                    mode,
                } => match self.take(&from, &base, Was::Renamed) {
                    Ok(Some(taken)) => arriving.push((path, over, Arriving::Moved(taken, mode))),
                    taken => {
                        let why = taken.err().unwrap_or(Not::Changed);
                        self.note(
                            &from,
                            Err(why),
                            &format!("was renamed to '{path}' by the cell"),
                        );
                    }
                },
                Change::Written {
                    path,
                    over,
                    content,
                } => {
                    if let Some(file) = file {
                        arriving.push((path, over, Arriving::Written(file, content)));
                    }
                }
                Change::Linked { path, over, target } => {
                    arriving.push((path, over, Arriving::Link(target.into_vec())));
                }
                Change::FolderRemoved { path } => emptied.push(path),
                Change::FolderMade { path, mode } => folders.push((path, mode)),
                Change::ModeSet { path, base, mode } => modes.push((path, base, mode)),
            }
        }
        emptied.sort_unstable_by(|one, other| other.cmp(one));
        for path in emptied {
            let removed = self.remove_folder(&path);
            self.note(&path, removed, "was deleted by the cell");
        }
        folders.sort_unstable();
        for (path, mode) in folders {
            let made = self.make_folder(&path, mode);
            self.note(&path, made, "was made by the cell");
        }
        for (path, over, what) in arriving {
            let placed = self.place(&path, over.as_ref(), what);
            self.note(&path, placed, "was written by the cell");
        }
        for (path, base, mode) in modes {
            let set = self.set_mode(&path, &base, mode);
            self.note(&path, set, "got other permissions by the cell");
        }
    }

    fn note(&mut self, path: &RelativePath, done: Result<(), Not>, what: &str) {
        let why = match done {
            Ok(()) => return,
            Err(Not::Changed) => "something else changed it here meanwhile".to_owned(),
            Err(Not::Io(error)) => format!("here that failed: {error}"),
        };
        self.notes.push(format!(
            "'{path}' {what}, but {why}; it stays here as it was"
        ));
    }

    /// Moves what is there out of the way; `None` when nothing is.
    fn take(&mut self, path: &RelativePath, base: &Base, was: Was) -> Result<Option<PathBuf>, Not> {
        let place = self.place_of(path)?;
        let Some(metadata) = present(&place)? else {
            return Ok(None);
        };
        if !self.is_as_known(path, &metadata, base) {
            return Err(Not::Changed);
        }
        let taken = self.in_trash(path, was)?;
        move_file(&place, &taken)?;
        self.undo.push(Undo::Rename {
            from: taken.clone(),
            to: place,
        });
        Ok(Some(taken))
    }

    fn remove_folder(&mut self, path: &RelativePath) -> Result<(), Not> {
        let place = self.place_of(path)?;
        let Some(metadata) = present(&place)? else {
            return Ok(());
        };
        fs::remove_dir(&place)?;
        self.undo
            .push(Undo::MakeFolder(place, metadata.permissions()));
        Ok(())
    }

    fn make_folder(&mut self, path: &RelativePath, mode: u32) -> Result<(), Not> {
        let place = self.place_of(path)?;
        match present(&place)? {
            Some(metadata) if metadata.is_dir() => return Ok(()),
            Some(_) => return Err(Not::Changed),
            None => {}
        }
        fs::create_dir(&place)?;
        fs::set_permissions(&place, Permissions::from_mode(mode & 0o777))?;
        self.undo.push(Undo::RemoveFolder(place));
        Ok(())
    }

    fn place(
        &mut self,
        path: &RelativePath,
        over: Option<&Base>,
        what: Arriving,
    ) -> Result<(), Not> {
        let place = self.place_of(path)?;
        let arrived = what.make_ready(path, &self.next_link())?;
        let there = present(&place)?;
        let is_free = match (&there, over) {
            (None, _) => true,
            (Some(metadata), Some(base)) => self.is_as_known(path, metadata, base),
            (Some(_), None) => false,
        };
        if !is_free {
            let other = free_name(&place)?;
            fs::rename(&arrived, &other)?;
            let name = other.file_name().unwrap_or_default().to_string_lossy();
            self.notes.push(format!(
                "'{path}' was written by the cell, and something else changed it here meanwhile; \
                 the cell's version is '{name}' beside it"
            ));
            self.undo.push(Undo::Rename {
                from: other,
                to: arrived,
            });
            return Ok(());
        }
        if there.is_some() {
            let before = self.in_trash(path, Was::Replaced)?;
            // So that there is a file of this name at any time; some file systems know no second name.
            fs::hard_link(&place, &before).or_else(|_| move_file(&place, &before))?;
            self.undo.push(Undo::Rename {
                from: before,
                to: place.clone(),
            });
        }
        rename_or_copy(&arrived, &place)?;
        self.undo.push(Undo::Rename {
            from: place.clone(),
            to: arrived,
        });
        let metadata = fs::symlink_metadata(&place)?;
        if metadata.is_file() {
            self.written.push((path.clone(), stamp(&metadata)));
        }
        Ok(())
    }

    fn set_mode(&mut self, path: &RelativePath, base: &Base, mode: u32) -> Result<(), Not> {
        let place = self.place_of(path)?;
        let metadata = present(&place)?.ok_or(Not::Changed)?;
        if !metadata.is_file() || !self.is_as_known(path, &metadata, base) {
            return Err(Not::Changed);
        }
        fs::set_permissions(&place, Permissions::from_mode(mode & 0o777))?;
        self.undo
            .push(Undo::SetMode(place.clone(), metadata.permissions()));
        let metadata = fs::symlink_metadata(&place)?;
        self.written.push((path.clone(), stamp(&metadata)));
        Ok(())
    }

    /// Refuses a path that leads through a link, or through something that is no folder.
    fn place_of(&self, path: &RelativePath) -> Result<PathBuf, Not> {
        let mut place = self.root.clone();
        let mut components = path.as_path().components().peekable();
        while let Some(component) = components.next() {
            place.push(component);
            if components.peek().is_some()
                && let Some(metadata) = present(&place)?
                && !metadata.is_dir()
            {
                return Err(Not::Changed);
            }
        }
        Ok(place)
    }

    fn is_as_known(&self, path: &RelativePath, metadata: &Metadata, base: &Base) -> bool {
        match base {
            Base::File(known) => metadata.is_file() && stamp(metadata) == *known,
            Base::Link { target } => {
                metadata.is_symlink()
                    && fs::read_link(self.root.join(path.as_path()))
                        .ok()
                        .and_then(|now| inside(&self.root, path, &now))
                        .is_some_and(|now| now == **target)
            }
        }
    }

    fn next_link(&mut self) -> PathBuf {
        self.linked += 1;
        self.staging.folder.join(format!("link-{}", self.linked))
    }

    fn in_trash(&mut self, path: &RelativePath, was: Was) -> io::Result<PathBuf> {
        let entry = match self.trash.take() {
            Some(entry) => entry,
            None => self.staging.trash.begin()?,
        };
        self.trash.insert(entry).place_for(was, path)
    }
}
