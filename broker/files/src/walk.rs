//! What lies in a folder, without following links.
//!
//! **Invariant:** a folder that could not be read to its end is never taken for one that lacks something.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use baton_protocol::files::RelativePath;

use crate::errors::at;
use crate::folder::{Folder, Status};
use crate::{FilesError, Root};

/// Caches and stores of tools: large, made anew by whoever needs them, or of use on one machine only.
const NEVER: [&str; 7] = [
    TRASH,
    ".git",
    ".ipynb_checkpoints",
    ".venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
];

/// Names that neither a listing nor what a cell changed ever contains.
pub(crate) fn never_travels(name: &OsStr) -> bool {
    NEVER.iter().any(|never| name == *never) || name.as_bytes().starts_with(STAGING.as_bytes())
}

/// What Baton keeps beside a notebook.
pub(crate) const TRASH: &str = ".baton";

/// How folders begin in which files wait for their place.
pub(crate) const STAGING: &str = ".baton-";

pub(crate) struct Walked {
    /// Folders before what is in them, nearer ones before farther ones.
    pub(crate) entries: Vec<(RelativePath, Status)>,
    /// The folders whose every name is among the entries; none is the root.
    pub(crate) listed: BTreeSet<Option<RelativePath>>,
    /// Why folders could not be read.
    pub(crate) errors: Vec<FilesError>,
    /// There is more.
    pub(crate) cut: bool,
}

/// Only a folder that was `listed` lacks the names that are not among the entries. What vanishes meanwhile is left out.
pub(crate) fn walk(root: &Root, most: usize) -> Walked {
    let mut walked = Walked {
        entries: Vec::new(),
        listed: BTreeSet::new(),
        errors: Vec::new(),
        cut: false,
    };
    let looked = root.check().and_then(|()| {
        walked.look(root, most);
        root.check()
    });
    if let Err(error) = looked {
        // Nobody knows what was read of which folder.
        walked.entries.clear();
        walked.listed.clear();
        walked.errors = vec![error];
    }
    walked
}

/// A folder that waits for its turn, as its name was found; none is the root.
type Next = Option<(RelativePath, Status)>;

impl Walked {
    fn look(&mut self, root: &Root, most: usize) {
        let mut folders = VecDeque::from([None]);
        while let Some(next) = folders.pop_front() {
            let listed = open(root, next.as_ref())
                .and_then(|folder| self.list(&folder, next.as_ref(), most, &mut folders));
            let path = next.map(|(path, _)| path);
            match listed {
                Ok(()) if self.cut => return,
                Ok(()) => drop(self.listed.insert(path)),
                Err(_) if path.as_ref().is_some_and(|path| !is_there(root, path)) => {
                    self.entries
                        .retain(|(entry, _)| Some(entry) != path.as_ref());
                }
                Err(source) => {
                    let below = path.as_ref().map(RelativePath::as_path);
                    let place = root.path().join(below.unwrap_or("".as_ref()));
                    self.errors.push(at(&place)(source));
                }
            }
        }
    }

    fn list(
        &mut self,
        folder: &Folder,
        of: Option<&(RelativePath, Status)>,
        most: usize,
        folders: &mut VecDeque<Next>,
    ) -> io::Result<()> {
        folder.each_name(|name| {
            if never_travels(name) {
                return Ok(true);
            }
            let Some(status) = folder.child(name).present()? else {
                return Ok(true);
            };
            if self.entries.len() == most {
                self.cut = true;
                return Ok(false);
            }
            let path = below(of.map(|(path, _)| path), name)?;
            if status.is_folder() {
                folders.push_back(Some((path.clone(), status)));
            }
            self.entries.push((path, status));
            Ok(true)
        })
    }
}

/// The folder that had the name when its own folder was listed, and no other.
fn open(root: &Root, folder: Option<&(RelativePath, Status)>) -> io::Result<Folder> {
    let Some((path, status)) = folder else {
        return Ok(root.folder().clone());
    };
    let folder = root.folder().folder(path)?;
    match folder.status()?.is_same(status) {
        true => Ok(folder),
        false => Err(io::Error::other("another folder took its place")),
    }
}

/// Also when nobody can tell.
fn is_there(root: &Root, path: &RelativePath) -> bool {
    let found = root.folder().at(path).and_then(|place| place.status());
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

pub(crate) fn below(folder: Option<&RelativePath>, name: &OsStr) -> io::Result<RelativePath> {
    let mut path = folder.map_or_else(Vec::new, |folder| [folder.as_bytes(), b"/"].concat());
    path.extend_from_slice(name.as_bytes());
    RelativePath::new(path).map_err(io::Error::other)
}
