//! Repeats a cell's changes to files in the notebook's folder.
//!
//! Each file that waits in the staging folder is put in place by renaming. Replaced files go to the
//! trash, and all changes can be undone until they are kept. A file that changed in the notebook's
//! folder while the cell ran is never replaced: both versions stay, and a note says so.
//!
//! **Invariant:** no link is followed, and no change by another program is lost.

use super::{
    arriving::{Arriving, check_link},
    listing::stamp,
    staging::Staging,
    undo::Undo,
};
use crate::{
    folder::{Below, Place, Status},
    links::inside,
    places::{attempt, free_name, move_file},
    trash::{TrashEntry, Was},
    walk::{below, never_copied},
};
use baton_protocol::{
    JobKind,
    files::{Base, Change, RelativePath, Stamp},
};
use std::{fmt, io, path::Path};

/// Puts everything in place. What cannot be changed stays as it was, with a note for the student. `kind`: of the job
/// that made the changes.
///
/// The hidden folder is gone before the cell ends: the student's next cell may list this folder.
#[must_use]
pub fn commit(mut staging: Staging, kind: JobKind) -> Committed {
    let changes = staging.take_changes();
    let mut commit = Commit {
        staging,
        noun: kind.noun(),
        trash: None,
        deleted: 0,
        linked: 0,
        undo: Vec::new(),
        notes: Vec::new(),
        written: Vec::new(),
        made: Vec::new(),
    };
    commit.all(changes);
    Committed {
        noun: commit.noun,
        notes: commit.notes,
        written: commit.written,
        made: commit.made,
        deleted: commit.deleted,
        undo: commit.undo,
        _trash: commit.trash,
    }
}

/// Changes that were made. They are undone unless they are kept.
#[derive(Debug)]
pub struct Committed {
    /// What made the changes, for notes.
    noun: &'static str,
    /// One line for each file that is not as the cell left it.
    pub notes: Vec<String>,
    /// Files that are identical to those in the mirror.
    pub written: Vec<(RelativePath, Stamp)>,
    /// Everything that the cell made in this folder.
    pub made: Vec<RelativePath>,
    /// The number of files and links in the trash because the cell deleted them.
    pub deleted: usize,
    undo: Vec<Undo>,
    _trash: Option<TrashEntry>,
}

impl Committed {
    /// Makes the changes final. Returns the notes.
    pub fn keep(mut self) -> Vec<String> {
        self.undo.clear();
        std::mem::take(&mut self.notes)
    }

    /// Restores everything as it was before. Returns a line for each file that something else has changed since then.
    pub fn undo(mut self) -> Vec<String> {
        Undo::run_all(std::mem::take(&mut self.undo), self.noun)
    }
}

impl Drop for Committed {
    fn drop(&mut self) {
        for note in Undo::run_all(std::mem::take(&mut self.undo), self.noun) {
            tracing::warn!("{note}");
        }
    }
}

struct Commit {
    staging: Staging,
    /// What made the changes, for notes.
    noun: &'static str,
    /// Made when the first file is taken away.
    trash: Option<TrashEntry>,
    deleted: usize,
    linked: usize,
    undo: Vec<Undo>,
    notes: Vec<String>,
    written: Vec<(RelativePath, Stamp)>,
    made: Vec<RelativePath>,
}

/// Why a change is not made.
enum Not {
    Changed,
    /// The mirror had the content of a file to which a link here leads.
    LeadsOutside,
    /// Such files are never copied to a mirror, so a cell may not change them.
    NeverCopied,
    Io(io::Error),
}

impl fmt::Display for Not {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => formatter.write_str("something else changed it here meanwhile"),
            Self::LeadsOutside => formatter.write_str(
                "it is a link here to a file outside the folder, which cannot be changed from a GPU machine",
            ),
            Self::NeverCopied => formatter.write_str("files of that name are not copied"),
            Self::Io(error) => write!(formatter, "the same change failed here: {error}"),
        }
    }
}

impl From<io::Error> for Not {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Commit {
    /// First removes what goes away, then puts what arrives in place.
    fn all(&mut self, changes: Vec<(Change, Option<Below>)>) {
        let mut arriving = Vec::new();
        let mut emptied = Vec::new();
        let mut folders = Vec::new();
        let mut modes = Vec::new();
        for (change, file) in changes {
            match change {
                Change::Removed { path, base } => {
                    let taken = self.take(&path, &base, Was::Deleted);
                    self.deleted += usize::from(matches!(taken, Ok(Some(_))));
                    self.note(&path, taken.map(drop), "was deleted");
                }
                Change::Moved {
                    from,
                    base,
                    path,
                    over,
                    mode,
                } => match self.take_to(&path, &from, &base) {
                    Ok(Some(taken)) => {
                        arriving.push((path, over, Arriving::Moved { from, taken, mode }));
                    }
                    taken => {
                        let why = taken.err().unwrap_or(Not::Changed);
                        self.note(&from, Err(why), &format!("was renamed to '{path}'"));
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
            self.note(&path, removed, "was deleted");
        }
        folders.sort_unstable();
        for (path, mode) in folders {
            let made = self.make_folder(&path, mode);
            self.note(&path, made, "was created");
        }
        for (path, over, what) in arriving {
            self.place_or_keep(&path, over.as_ref(), &what);
        }
        for (path, base, mode) in modes {
            let set = self.set_mode(&path, &base, mode);
            self.note(&path, set, "was given other permissions");
        }
    }

    fn note(&mut self, path: &RelativePath, done: Result<(), Not>, what: &str) {
        if let Err(why) = done {
            let noun = self.noun;
            self.notes.push(format!(
                "'{path}' {what} by the {noun}, but {why}; it stays here as it was"
            ));
        }
    }

    /// Moves an existing file to the trash; `None` if there is none.
    fn take(&mut self, path: &RelativePath, base: &Base, was: Was) -> Result<Option<Below>, Not> {
        let Some((place, status)) = self.find(path)? else {
            return Ok(None);
        };
        self.check_known(path, &place, &status, base)?;
        let taken = self.in_trash(path, was)?;
        move_file(&place, &taken.place()?)?;
        self.undo.push(Undo::Restore {
            kept: taken.clone(),
            to: self.home(path),
        });
        Ok(Some(taken))
    }

    /// Takes a file that will get another name. A link is checked like a new one.
    fn take_to(
        &mut self,
        path: &RelativePath,
        from: &RelativePath,
        base: &Base,
    ) -> Result<Option<Below>, Not> {
        if let Base::Link { target } = base {
            check_link(path, target)?;
        }
        self.take(from, base, Was::Renamed)
    }

    fn remove_folder(&mut self, path: &RelativePath) -> Result<(), Not> {
        let Some((place, status)) = self.find(path)? else {
            return Ok(());
        };
        place.remove_folder()?;
        self.undo
            .push(Undo::MakeFolder(self.home(path), status.mode));
        Ok(())
    }

    fn make_folder(&mut self, path: &RelativePath, mode: u32) -> Result<(), Not> {
        let place = self.place_of(path)?;
        match place.present()? {
            // The folder exists. If a rule excludes it, only what the cell puts there is copied from now on.
            Some(status) if status.is_folder() => {
                self.made.push(path.clone());
                return Ok(());
            }
            Some(_) => return Err(Not::Changed),
            None => {}
        }
        place.make_folder(0o700)?;
        self.undo.push(Undo::RemoveFolder(self.home(path)));
        self.made.push(path.clone());
        attempt("permissions", place.set_mode(mode & 0o777).map(drop));
        Ok(())
    }

    /// Puts something in place. If that fails, this folder is as before, and the cell's bytes are kept elsewhere.
    fn place_or_keep(&mut self, path: &RelativePath, over: Option<&Base>, what: &Arriving) {
        let before = self.undo.len();
        let Err(why) = self.place(path, over, what) else {
            return;
        };
        let noun = self.noun;
        let undone = Undo::run_all(self.undo.split_off(before), noun);
        self.notes.extend(undone);
        let note = match what {
            Arriving::Moved { from, taken, .. } => {
                let now = match self.move_back(from, taken) {
                    Ok(back) if back == *from => "it stays here as it was".to_owned(),
                    Ok(other) => format!("it is now '{other}'"),
                    Err(_) => format!("`baton files restore '{from}'` restores it"),
                };
                format!("'{from}' was renamed to '{path}' by the {noun}, but {why}; {now}")
            }
            Arriving::Written(file, _) if !matches!(why, Not::NeverCopied) => {
                let now = match self.keep_near(path, file, None) {
                    Ok(kept) => format!("is '{kept}'"),
                    Err(error) => format!("could not be kept: {error}"),
                };
                format!("'{path}' was written by the {noun}, but {why}; the {noun}'s version {now}")
            }
            Arriving::Written(..) | Arriving::Link(_) => {
                format!("'{path}' was written by the {noun}, but {why}; it stays here as it was")
            }
        };
        self.notes.push(note);
    }

    fn place(
        &mut self,
        path: &RelativePath,
        over: Option<&Base>,
        what: &Arriving,
    ) -> Result<(), Not> {
        let place = self.place_of(path)?;
        self.linked += 1;
        let waiting = self.staging.waiting(&format!("link-{}", self.linked));
        if let Arriving::Moved { taken, mode, .. } = what {
            let before = taken.place()?.status()?;
            if before.is_file() && before.mode & 0o777 != mode & 0o777 {
                self.undo.push(Undo::SetMode {
                    file: taken.clone(),
                    before: before.mode,
                    stamp: None,
                });
            }
        }
        let arrived = what.make_ready(path, waiting)?;
        let there = place.present()?;
        let taken = match (&there, over) {
            (None, _) => None,
            (Some(status), Some(base)) => {
                let known = self.check_known(path, &place, status, base);
                known.err().map(|why| format!("and {why}"))
            }
            (Some(_), None) => Some("which did not know about the file here".to_owned()),
        };
        if let Some(why) = taken {
            return self.place_beside(path, &arrived, what.renamed(), &why);
        }
        if there.is_some() {
            self.keep_before(path, &place)?;
        }
        move_file(&arrived.place()?, &place)?;
        let status = self.note_placed(path, &place, what.renamed());
        self.made.push(path.clone());
        // Without its status, the mirror gets the file again.
        if let Some(status) = status.filter(Status::is_file) {
            self.written.push((path.clone(), stamp(&status)));
        }
        Ok(())
    }

    /// Something was put in this place. Returns its status. `renamed`: where in the trash it was, if the cell renamed it.
    fn note_placed(
        &mut self,
        path: &RelativePath,
        place: &Place,
        renamed: Option<Below>,
    ) -> Option<Status> {
        let status = place.status().ok();
        self.undo.push(Undo::Take {
            placed: self.home(path),
            stamp: status.as_ref().map(stamp),
            renamed,
        });
        status
    }

    /// Keeps the version from before the cell in the trash.
    fn keep_before(&mut self, path: &RelativePath, place: &Place) -> io::Result<()> {
        let before = self.in_trash(path, Was::Replaced)?;
        let kept = before.place()?;
        // Link first, so that the name always has a file. Some file systems do not support second names.
        place
            .hard_link_to(&kept)
            .or_else(|_| move_file(place, &kept))?;
        self.undo.push(Undo::Restore {
            kept: before,
            to: self.home(path),
        });
        Ok(())
    }

    /// Keeps both versions, the cell's under another name.
    fn place_beside(
        &mut self,
        path: &RelativePath,
        arrived: &Below,
        renamed: Option<Below>,
        why: &str,
    ) -> Result<(), Not> {
        let folder = path.parent();
        let beside = self.keep_in(folder.as_ref(), path, arrived, renamed)?;
        let name = beside.as_path().file_name().unwrap_or_default();
        let (name, noun) = (name.display(), self.noun);
        self.notes.push(format!(
            "'{path}' was written by the {noun}, {why}; the {noun}'s version is '{name}' beside it"
        ));
        Ok(())
    }

    /// Returns a renamed file to its old name, or near to that if the name is taken.
    fn move_back(&mut self, from: &RelativePath, taken: &Below) -> io::Result<RelativePath> {
        let place = self.staging.home.at(from)?;
        if place.present()?.is_some() {
            return self.keep_near(from, taken, Some(taken));
        }
        move_file(&taken.place()?, &place)?;
        self.note_placed(from, &place, Some(taken.clone()));
        Ok(from.clone())
    }

    /// Keeps a file in the nearest folder that accepts it. Returns its path.
    fn keep_near(
        &mut self,
        path: &RelativePath,
        file: &Below,
        renamed: Option<&Below>,
    ) -> io::Result<RelativePath> {
        let mut folder = path.parent();
        loop {
            match self.keep_in(folder.as_ref(), path, file, renamed.cloned()) {
                Err(error) => folder = folder.ok_or(error)?.parent(),
                kept => return kept,
            }
        }
    }

    /// Keeps a file in this folder, under a free name that is similar to the path's.
    fn keep_in(
        &mut self,
        folder: Option<&RelativePath>,
        path: &RelativePath,
        file: &Below,
        renamed: Option<Below>,
    ) -> io::Result<RelativePath> {
        let name = path.as_path().file_name().unwrap_or_default();
        let free = free_name(&self.staging.home.at(&below(folder, name)?)?)?;
        move_file(&file.place()?, &free)?;
        let kept = below(folder, free.name())?;
        self.note_placed(&kept, &free, renamed);
        Ok(kept)
    }

    fn set_mode(&mut self, path: &RelativePath, base: &Base, mode: u32) -> Result<(), Not> {
        let (place, before) = self.find(path)?.ok_or(Not::Changed)?;
        self.check_known(path, &place, &before, base)?;
        if !before.is_file() {
            return Err(Not::Changed);
        }
        let status = place.set_mode(mode & 0o777)?;
        let stamp = stamp(&status);
        self.undo.push(Undo::SetMode {
            file: self.home(path),
            before: before.mode,
            stamp: Some(stamp),
        });
        self.written.push((path.clone(), stamp));
        Ok(())
    }

    /// What exists at this path, if anything.
    fn find(&self, path: &RelativePath) -> Result<Option<(Place, Status)>, Not> {
        let place = match self.place_of(path) {
            Err(Not::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            place => place?,
        };
        let status = place.present()?;
        Ok(status.map(|status| (place, status)))
    }

    /// Refuses a path that leads through a link, through something other than a folder, or to a
    /// name that is never copied.
    fn place_of(&self, path: &RelativePath) -> Result<Place, Not> {
        if path.as_path().iter().any(never_copied) {
            return Err(Not::NeverCopied);
        }
        match self.staging.home.at(path) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(Not::Changed),
            place => Ok(place?),
        }
    }

    fn home(&self, path: &RelativePath) -> Below {
        Below {
            folder: self.staging.home.clone(),
            path: path.clone(),
        }
    }

    /// Checks that what exists at this path is what the mirror had.
    fn check_known(
        &self,
        path: &RelativePath,
        place: &Place,
        status: &Status,
        base: &Base,
    ) -> Result<(), Not> {
        let target = || {
            let now = place.read_link().ok()?;
            inside(&self.staging.root, path, Path::new(&now))
        };
        let is_known = match base {
            Base::File(_) if status.is_link() && target().is_none() => {
                return Err(Not::LeadsOutside);
            }
            Base::File(known) => status.is_file() && stamp(status) == *known,
            Base::Link { target: known } => {
                status.is_link() && target().is_some_and(|target| target == **known)
            }
        };
        is_known.then_some(()).ok_or(Not::Changed)
    }

    fn in_trash(&mut self, path: &RelativePath, was: Was) -> io::Result<Below> {
        let entry = match self.trash.take() {
            Some(entry) => entry,
            None => self.staging.trash.begin()?,
        };
        self.trash.insert(entry).place_for(was, path)
    }
}
