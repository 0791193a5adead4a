//! Which files of the notebook's folder are copied.
//!
//! Hidden files are not: keys, settings and caches of other programs stay on this machine. `.batonignore`
//! beside the notebook changes that, in the syntax of `.gitignore`: `!.env` adds a file, `raw/` excludes a
//! folder. Files that a cell has made are always copied, because the session has them already.
//!
//! **Invariant:** an excluded folder is not read, except for files that cells have made in it.

use crate::folder::{Folder, Status};
use baton_protocol::files::RelativePath;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::{
    collections::BTreeSet,
    io::{self, Read as _},
};

/// The file with the rules, beside the notebook.
pub(crate) const RULES: &str = ".batonignore";
const HIDDEN: &str = ".*";
/// The most bytes of rules to read.
const MOST_BYTES: u64 = 64 << 10;

pub(crate) struct Rules<'a> {
    patterns: Gitignore,
    /// What cells have made.
    made: &'a BTreeSet<RelativePath>,
    /// Lines that have no effect.
    pub(crate) broken: Vec<String>,
}

/// Whether a file or folder is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    Yes,
    /// Yes, because a cell has made it.
    Made,
    No,
}

impl<'a> Rules<'a> {
    pub(crate) fn read(folder: &Folder, made: &'a BTreeSet<RelativePath>) -> io::Result<Self> {
        let mut text = Vec::new();
        match folder.child(RULES).open_file() {
            Ok(file) => drop(file.take(MOST_BYTES).read_to_end(&mut text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut builder = GitignoreBuilder::new("");
        let mut broken = Vec::new();
        for line in std::iter::once(HIDDEN).chain(String::from_utf8_lossy(&text).lines()) {
            if builder.add_line(None, line).is_err() {
                broken.push(line.to_owned());
            }
        }
        Ok(Self {
            patterns: builder.build().map_err(io::Error::other)?,
            made,
            broken,
        })
    }

    /// Decides about a path. `within` is the decision about the folder that contains it.
    pub(crate) fn decide(&self, path: &RelativePath, status: &Status, within: Copied) -> Copied {
        let is_left_out = within != Copied::Yes
            || self
                .patterns
                .matched(path.as_path(), status.is_folder())
                .is_ignore();
        match is_left_out {
            false => Copied::Yes,
            true if self.made.contains(path) => Copied::Made,
            true => Copied::No,
        }
    }
}
