//! The proof that a cell removed what is missing in its mirror.
//!
//! If the system reports each name that a session removes, such a call proves that the cell removed
//! the file, or a folder that contained it. Otherwise a missing name counts as removed by the cell,
//! unless more is missing than is plausible.
//!
//! **Invariant:** pure.

use super::compare::{Difference, Found, Known};
use baton_protocol::files::{Change, RelativePath};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
};

/// The most files that one cell may remove unseen; they must also be less than half of all.
const MOST_UNSEEN: usize = 100;

#[derive(Default)]
pub(super) struct Removals {
    pub(super) are_seen: bool,
    /// Folders that the mirror knows, by inode.
    folders: HashMap<u64, RelativePath>,
    /// Known names that a call was about to remove, or whose removal counted as the cell's before.
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

    /// Forgets calls whose names still exist after the cell. They failed or were undone, and prove
    /// nothing about later cells.
    pub(super) fn end_cell(&mut self, found: &BTreeMap<RelativePath, Found>) {
        self.seen.retain(|path| !found.contains_key(path));
    }

    /// Returns the differences without removals that have no proof, and the paths of those removals.
    pub(super) fn proven(
        &self,
        known: &BTreeMap<RelativePath, Known>,
        found: &BTreeMap<RelativePath, Found>,
        differences: Vec<Difference>,
    ) -> (Vec<Difference>, Vec<RelativePath>) {
        let believed = !self.are_seen && self.is_believable(known, &differences);
        let is_proven = |path: &RelativePath| believed || self.was_seen(path, known, found);
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

    /// Whether the removal of this name was seen, or that of a folder on the way to it that no longer exists.
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

    /// Whether the number of removals is plausible. Renamed files do not count, and neither do files whose removal is
    /// proven.
    fn is_believable(
        &self,
        known: &BTreeMap<RelativePath, Known>,
        differences: &[Difference],
    ) -> bool {
        let is_file = |(path, known): &(&RelativePath, &Known)| {
            !matches!(known.here, Found::Folder { .. }) && !self.seen.contains(*path)
        };
        let files = known.iter().filter(is_file).count();
        let is_removal = |difference: &&Difference| match difference {
            Difference::Change(Change::Removed { path, .. }) => !self.seen.contains(path),
            _ => false,
        };
        let removed = differences.iter().filter(is_removal).count();
        removed == 0 || removed <= MOST_UNSEEN && 2 * removed < files
    }
}

/// The name that the difference removes.
pub(super) fn removed(difference: &Difference) -> Option<&RelativePath> {
    match difference {
        Difference::Change(Change::Removed { path, .. } | Change::FolderRemoved { path }) => {
            Some(path)
        }
        Difference::Change(Change::Moved { from, .. }) => Some(from),
        Difference::Change(_) | Difference::Written { .. } => None,
    }
}
