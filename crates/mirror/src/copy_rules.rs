//! Which files of the notebook's folder travel.
//!
//! Hidden ones do not: keys, settings and caches of other programs are no business of another machine. `.batonignore`
//! beside the notebook says otherwise, in the language of `.gitignore`: `!.env` lets one in, `raw/` leaves one out. What
//! a cell has made travels whatever it is called, because the session has it already.
//!
//! **Invariant:** what a rule leaves out is not looked into, but for what cells have made in there.

use std::collections::BTreeSet;
use std::io::{self, Read as _};

use baton_protocol::files::RelativePath;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::folder::{Folder, Status};

/// Beside the notebook.
pub(crate) const RULES: &str = ".batonignore";
const HIDDEN: &str = ".*";
/// More is not read.
const MOST_BYTES: u64 = 64 << 10;

pub(crate) struct Rules<'a> {
    patterns: Gitignore,
    /// By cells.
    made: &'a BTreeSet<RelativePath>,
    /// Lines that say nothing.
    pub(crate) broken: Vec<String>,
}

/// What becomes of a file or folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Travels {
    Yes,
    /// Only because a cell has made it.
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

    /// `within` is the same of the folder that it is in.
    pub(crate) fn travels(&self, path: &RelativePath, status: &Status, within: Travels) -> Travels {
        let is_left_out = within != Travels::Yes
            || self
                .patterns
                .matched(path.as_path(), status.is_folder())
                .is_ignore();
        match is_left_out {
            false => Travels::Yes,
            true if self.made.contains(path) => Travels::Made,
            true => Travels::No,
        }
    }
}
