//! What lies in a folder, without following links.
//!
//! **Invariant:** a folder that could not be read to its end is never taken for one that lacks something.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use baton_protocol::files::RelativePath;

use crate::errors::at;
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
fn never_travels(name: &OsStr) -> bool {
    NEVER.iter().any(|never| name == *never) || name.as_bytes().starts_with(STAGING.as_bytes())
}

/// What Baton keeps beside a notebook.
pub(crate) const TRASH: &str = ".baton";

/// How folders begin in which files wait for their place.
pub(crate) const STAGING: &str = ".baton-";

pub(crate) struct Walked {
    /// Folders before what is in them, nearer ones before farther ones.
    pub(crate) entries: Vec<(RelativePath, Metadata)>,
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
        walked.look(root.path(), most);
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

impl Walked {
    fn look(&mut self, root: &Path, most: usize) {
        let mut folders = VecDeque::from([None]);
        while let Some(folder) = folders.pop_front() {
            let place = place(root, folder.as_ref());
            match self.list(&place, folder.as_ref(), most, &mut folders) {
                Ok(()) if self.cut => return,
                Ok(()) => drop(self.listed.insert(folder)),
                Err(_) if folder.is_some() && !is_there(&place) => {
                    self.entries
                        .retain(|(path, _)| Some(path) != folder.as_ref());
                }
                Err(source) => self.errors.push(at(&place)(source)),
            }
        }
    }

    fn list(
        &mut self,
        place: &Path,
        folder: Option<&RelativePath>,
        most: usize,
        folders: &mut VecDeque<Option<RelativePath>>,
    ) -> io::Result<()> {
        for entry in fs::read_dir(place)? {
            let entry = entry?;
            let name = entry.file_name();
            if never_travels(&name) {
                continue;
            }
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if self.entries.len() == most {
                self.cut = true;
                return Ok(());
            }
            let path = below(folder, &name)?;
            if metadata.is_dir() {
                folders.push_back(Some(path.clone()));
            }
            self.entries.push((path, metadata));
        }
        Ok(())
    }
}

fn place(root: &Path, folder: Option<&RelativePath>) -> PathBuf {
    folder.map_or_else(|| root.to_owned(), |folder| root.join(folder.as_path()))
}

/// Also when nobody can tell.
fn is_there(place: &Path) -> bool {
    let metadata = fs::symlink_metadata(place);
    !metadata.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn below(folder: Option<&RelativePath>, name: &OsStr) -> io::Result<RelativePath> {
    let mut path = folder.map_or_else(Vec::new, |folder| [folder.as_bytes(), b"/"].concat());
    path.extend_from_slice(name.as_bytes());
    RelativePath::new(path).map_err(io::Error::other)
}
