//! What lies in a folder, without following links.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use baton_protocol::files::RelativePath;

use crate::FilesError;
use crate::errors::at;

/// Caches and stores of tools: large, made anew by whoever needs them, or of use on one machine only.
const NEVER: [&str; 6] = [
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

/// How folders begin in which files wait for their place.
pub(crate) const STAGING: &str = ".baton-";

pub(crate) struct Walked {
    /// Folders before what is in them, nearer ones before farther ones.
    pub(crate) entries: Vec<(RelativePath, Metadata)>,
    /// There is more.
    pub(crate) cut: bool,
}

/// What vanishes meanwhile, or cannot be entered, is left out. A folder that is not there has nothing in it.
pub(crate) fn walk(root: &Path, most: usize) -> Result<Walked, FilesError> {
    let mut entries = Vec::new();
    let mut folders = VecDeque::from([None]);
    while let Some(folder) = folders.pop_front() {
        let path = folder.as_ref().map_or_else(
            || root.to_owned(),
            |path: &RelativePath| root.join(path.as_path()),
        );
        let listed = match fs::read_dir(&path) {
            Ok(listed) => listed,
            Err(error) if folder.is_none() && error.kind() != io::ErrorKind::NotFound => {
                return Err(at(root)(error));
            }
            Err(_) => continue,
        };
        for entry in listed.flatten() {
            let name = entry.file_name();
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if never_travels(&name) {
                continue;
            }
            if entries.len() == most {
                return Ok(Walked { entries, cut: true });
            }
            let Some(path) = below(folder.as_ref(), &name) else {
                continue;
            };
            if metadata.is_dir() {
                folders.push_back(Some(path.clone()));
            }
            entries.push((path, metadata));
        }
    }
    Ok(Walked {
        entries,
        cut: false,
    })
}

fn below(folder: Option<&RelativePath>, name: &OsStr) -> Option<RelativePath> {
    let mut path = folder.map_or_else(Vec::new, |folder| [folder.as_bytes(), b"/"].concat());
    path.extend_from_slice(name.as_bytes());
    RelativePath::new(path).ok()
}
