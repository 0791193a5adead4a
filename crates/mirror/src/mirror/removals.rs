//! What proves that a cell removed what is gone from its mirror.
//!
//! Where the system tells of each name that a session takes away, such a call is the proof, of a file or of a folder
//! that it was in. Elsewhere a name that is gone counts as removed by the cell, unless more is gone than one should
//! believe.
//!
//! **Invariant:** pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use baton_protocol::files::{Change, RelativePath};

use super::compare::{Difference, Found, Known};

/// How many files one cell may remove unseen; also less than half of all.
const MOST_UNSEEN: usize = 100;

#[derive(Default)]
pub(super) struct Removals {
    pub(super) are_seen: bool,
    /// Folders that the mirror knows, by inode.
    folders: HashMap<u64, RelativePath>,
    /// Known names that a call was to take away.
    seen: BTreeSet<RelativePath>,
}

impl Removals {
    pub(super) fn know(&mut self, path: &RelativePath, here: &Found) {
        self.seen.remove(path);
        if let Found::Folder { inode, .. } = here {
            self.folders.insert(*inode, path.clone());
        }
    }

    pub(super) fn forget(&mut self, path: &RelativePath, here: &Found) {
        self.seen.remove(path);
        if let Found::Folder { inode, .. } = here
            && self.folders.get(inode) == Some(path)
        {
            self.folders.remove(inode);
        }
    }

    pub(super) fn path_in(&self, folder: u64, name: &OsStr) -> Option<RelativePath> {
        let folder = self.folders.get(&folder)?.as_bytes();
        RelativePath::new([folder, b"/", name.as_bytes()].concat()).ok()
    }

    pub(super) fn saw(&mut self, path: RelativePath) {
        self.seen.insert(path);
    }

    /// What is there after a cell was not taken away: a call that failed, or put it back, proves nothing of later cells.
    pub(super) fn end_cell(&mut self, found: &BTreeMap<RelativePath, Found>) {
        self.seen.retain(|path| !found.contains_key(path));
    }

    /// The differences without the removals that nothing proves, and what those would have removed.
    pub(super) fn proven(
        &self,
        known: &BTreeMap<RelativePath, Known>,
        found: &BTreeMap<RelativePath, Found>,
        differences: Vec<Difference>,
    ) -> (Vec<Difference>, Vec<RelativePath>) {
        let believed = self.are_seen || is_believable(known, &differences);
        let is_proven = |path: &RelativePath| match self.are_seen {
            true => self.was_seen(path, known, found),
            false => believed,
        };
        let mut missing = Vec::new();
        let mut proven = Vec::new();
        for difference in differences {
            match removed(&difference).filter(|path| !is_proven(path)) {
                Some(path) => missing.push(path.clone()),
                None => proven.push(difference),
            }
        }
        (proven, missing)
    }

    /// The name itself, or a folder on the way to it that is not there any more.
    fn was_seen(
        &self,
        path: &RelativePath,
        known: &BTreeMap<RelativePath, Known>,
        found: &BTreeMap<RelativePath, Found>,
    ) -> bool {
        if self.seen.contains(path) {
            return true;
        }
        let is_same_folder = |folder: &RelativePath| match (known.get(folder), found.get(folder)) {
            (
                Some(Known {
                    here: Found::Folder { inode: before, .. },
                    ..
                }),
                Some(Found::Folder { inode, .. }),
            ) => before == inode,
            _ => false,
        };
        let folders = std::iter::successors(path.parent(), RelativePath::parent);
        folders
            .filter(|folder| !is_same_folder(folder))
            .any(|folder| self.seen.contains(&folder))
    }
}

/// The name that is gone afterwards.
fn removed(difference: &Difference) -> Option<&RelativePath> {
    match difference {
        Difference::Change(Change::Removed { path, .. } | Change::FolderRemoved { path }) => {
            Some(path)
        }
        Difference::Change(Change::Moved { from, .. }) => Some(from),
        Difference::Change(_) | Difference::Written { .. } => None,
    }
}

/// What only has another name is not lost.
fn is_believable(known: &BTreeMap<RelativePath, Known>, differences: &[Difference]) -> bool {
    let is_file = |known: &&Known| !matches!(known.here, Found::Folder { .. });
    let files = known.values().filter(is_file).count();
    let is_removal =
        |difference: &&Difference| matches!(difference, Difference::Change(Change::Removed { .. }));
    let removed = differences.iter().filter(is_removal).count();
    removed == 0 || removed <= MOST_UNSEEN && 2 * removed < files
}
