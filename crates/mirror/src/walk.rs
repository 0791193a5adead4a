//! Lists the contents of a folder, without following links.
//!
//! **Invariant:** a folder that could not be read to the end never counts as lacking a name.

use crate::{
    FilesError, Root,
    copy_rules::{Copied, Rules},
    errors::at,
    folder::{Folder, Status, is_absent},
};
use baton_protocol::files::RelativePath;
use std::{
    collections::{BTreeSet, VecDeque},
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt as _,
};

/// Caches and stores of tools: large, easy to recreate, or useful on one machine only.
const NEVER: [&str; 7] = [
    TRASH,
    ".git",
    ".ipynb_checkpoints",
    ".venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
];

/// Names that never occur in a listing or in a cell's changes.
pub(crate) fn never_copied(name: &OsStr) -> bool {
    NEVER.iter().any(|never| name == *never) || name.as_bytes().starts_with(STAGING.as_bytes())
}

/// The folder for Baton's own files beside a notebook.
pub(crate) const TRASH: &str = ".baton";

/// The prefix of what Baton puts beside a notebook for a moment: folders in which files wait to be put in place,
/// unfinished copies, and files that prove access to the folder.
pub const STAGING: &str = ".baton-";

pub(crate) struct Walked {
    /// Folders precede their contents, and near folders precede far ones.
    pub(crate) entries: Vec<(RelativePath, Status)>,
    /// Folders that were listed to the end; `None` stands for the root.
    pub(crate) listed: BTreeSet<Option<RelativePath>>,
    /// Why folders could not be read.
    pub(crate) errors: Vec<FilesError>,
    /// Whether there is more.
    pub(crate) cut: bool,
    /// Paths that the rules exclude, without their contents; only a few.
    pub(crate) left_out: Vec<RelativePath>,
    /// Paths that the rules would exclude if a cell had not made them.
    pub(crate) made: BTreeSet<RelativePath>,
}

/// The limit for remembered excluded paths.
const MOST_LEFT_OUT: usize = 200;

/// Lists a folder. Only a folder in `listed` is known to lack names that are not among the entries. Files that
/// disappear meanwhile are left out. Without rules, everything is included that may ever be copied.
pub(crate) fn walk(root: &Root, most: usize, rules: Option<&Rules<'_>>) -> Walked {
    let mut walked = Walked {
        entries: Vec::new(),
        listed: BTreeSet::new(),
        errors: Vec::new(),
        cut: false,
        left_out: Vec::new(),
        made: BTreeSet::new(),
    };
    let looked = root.check().and_then(|()| {
        walked.look(root, most, rules);
        root.check()
    });
    if let Err(error) = looked {
        // It is unknown which folder's contents were read.
        walked.entries.clear();
        walked.listed.clear();
        walked.errors = vec![error];
    }
    walked
}

/// A folder that waits to be read, as it was when found; none is the root.
type Next = Option<(RelativePath, Status, Copied)>;

impl Walked {
    fn look(&mut self, root: &Root, most: usize, rules: Option<&Rules<'_>>) {
        let mut folders = VecDeque::from([None]);
        while let Some(next) = folders.pop_front() {
            let listed = open(root, &next)
                .and_then(|folder| self.list(&folder, &next, most, rules, &mut folders));
            let path = next.map(|(path, ..)| path);
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
        of: &Next,
        most: usize,
        rules: Option<&Rules<'_>>,
        folders: &mut VecDeque<Next>,
    ) -> io::Result<()> {
        let (of, within) = match of {
            Some((path, _, copied)) => (Some(path), *copied),
            None => (None, Copied::Yes),
        };
        folder.each_name(|name| {
            if never_copied(name) {
                return Ok(true);
            }
            let Some(status) = folder.child(name).present()? else {
                return Ok(true);
            };
            let path = below(of, name)?;
            let copied = rules.map_or(Copied::Yes, |rules| rules.decide(&path, &status, within));
            match copied {
                Copied::Yes => {}
                Copied::Made => drop(self.made.insert(path.clone())),
                Copied::No => {
                    if within == Copied::Yes && self.left_out.len() < MOST_LEFT_OUT {
                        self.left_out.push(path);
                    }
                    return Ok(true);
                }
            }
            if self.entries.len() == most {
                self.cut = true;
                return Ok(false);
            }
            if status.is_folder() {
                folders.push_back(Some((path.clone(), status, copied)));
            }
            self.entries.push((path, status));
            Ok(true)
        })
    }
}

/// Opens the folder, if it is still the one that was found.
fn open(root: &Root, folder: &Next) -> io::Result<Folder> {
    let Some((path, status, _)) = folder else {
        return Ok(root.folder().clone());
    };
    let folder = root.folder().folder(path)?;
    match folder.status()?.is_same(status) {
        true => Ok(folder),
        false => Err(io::Error::other("another folder took its place")),
    }
}

/// Whether the path exists, also if that cannot be found out.
fn is_there(root: &Root, path: &RelativePath) -> bool {
    let found = root.folder().at(path).and_then(|place| place.status());
    !found.is_err_and(|error| is_absent(&error))
}

pub(crate) fn below(folder: Option<&RelativePath>, name: &OsStr) -> io::Result<RelativePath> {
    let mut path = folder.map_or_else(Vec::new, |folder| [folder.as_bytes(), b"/"].concat());
    path.extend_from_slice(name.as_bytes());
    RelativePath::new(path).map_err(io::Error::other)
}
