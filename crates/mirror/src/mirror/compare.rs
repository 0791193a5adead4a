//! A cell's changes to its mirror: compares the present contents with what was known before.
//!
//! **Invariant:** pure.

use baton_protocol::{
    Piece,
    files::{Base, Change, RelativePath},
};
use serde_bytes::ByteBuf;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What the mirror knows about one path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Known {
    /// Its state at home; none until the next listing reports what arrived there.
    pub(crate) home: Option<Base>,
    pub(crate) here: Found,
}

/// What exists at a path of the mirror.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    File {
        inode: u64,
        bytes: u64,
        modified_ns: i64,
        mode: u32,
        /// Whether the file has no bytes yet.
        placeholder: bool,
        /// Present if the file may change again without a new time, because it was written shortly
        /// before the scan or is mapped into memory. These were its bytes.
        unsure: Option<Vec<Piece>>,
    },
    Folder {
        inode: u64,
        mode: u32,
    },
    Link {
        target: Vec<u8>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// Needs no further data.
    Change(Change),
    /// The bytes of this file must be read.
    Written {
        path: RelativePath,
        over: Option<Base>,
        bytes: u64,
        /// It is another name of a file that has no bytes here yet.
        placeholder: bool,
        /// With these bytes it is unchanged; none if something else is different, too.
        unsure: Option<Vec<Piece>>,
    },
}

impl Difference {
    #[must_use]
    pub fn path(&self) -> &RelativePath {
        match self {
            Self::Written { path, .. } => path,
            Self::Change(change) => change.path(),
        }
    }
}

pub(crate) fn compare(
    known: &BTreeMap<RelativePath, Known>,
    found: &BTreeMap<RelativePath, Found>,
) -> Vec<Difference> {
    let mut comparison = Comparison {
        known,
        found,
        known_files: known
            .iter()
            .filter_map(|(path, known)| Some((inode(&known.here)?, path)))
            .collect(),
        moved_away: HashSet::new(),
        differences: Vec::new(),
    };
    for (path, now) in found {
        comparison.look(path, now);
    }
    for (path, before) in known {
        comparison.look_for(path, before);
    }
    comparison.differences
}

struct Comparison<'a> {
    known: &'a BTreeMap<RelativePath, Known>,
    found: &'a BTreeMap<RelativePath, Found>,
    known_files: HashMap<u64, &'a RelativePath>,
    moved_away: HashSet<&'a RelativePath>,
    differences: Vec<Difference>,
}

impl<'a> Comparison<'a> {
    fn look(&mut self, path: &'a RelativePath, now: &'a Found) {
        let before = self.known.get(path);
        let over = before.and_then(|before| before.home.clone());
        match (before.map(|before| &before.here), now) {
            (Some(Found::Folder { .. }), Found::Folder { .. }) => {}
            (_, Found::Folder { mode, .. }) => {
                let (path, mode) = (path.clone(), *mode);
                self.change(Change::FolderMade { path, mode });
            }
            (Some(Found::Link { target: before }), Found::Link { target }) if before == target => {}
            (_, Found::Link { target }) => {
                let (path, target) = (path.clone(), ByteBuf::from(target.clone()));
                self.change(Change::Linked { path, over, target });
            }
            (Some(before), Found::File { mode, .. }) if same_bytes(before, now) => {
                let other_mode =
                    matches!(before, Found::File { mode: before, .. } if before != mode);
                if let (true, Some(base)) = (other_mode, over) {
                    let (path, mode) = (path.clone(), *mode);
                    self.change(Change::ModeSet { path, base, mode });
                }
            }
            (before, Found::File { .. }) => self.file(path, before, now, over),
        }
    }

    /// Compares a file that may have other bytes than before.
    fn file(
        &mut self,
        path: &'a RelativePath,
        before: Option<&Found>,
        now: &Found,
        over: Option<Base>,
    ) {
        let Found::File {
            inode: number,
            bytes,
            mode,
            placeholder,
            ..
        } = now
        else {
            return;
        };
        if let Some(from) = self.known_files.get(number).copied()
            && let Some(Known {
                home: Some(base),
                here,
            }) = self.known.get(from)
            && from != path
            && same_bytes(here, now)
            && !self.moved_away.contains(from)
            && self.found.get(from).and_then(inode) != Some(*number)
        {
            self.moved_away.insert(from);
            self.change(Change::Moved {
                from: from.clone(),
                base: base.clone(),
                path: path.clone(),
                over,
                mode: *mode,
            });
            return;
        }
        let unsure = match before {
            Some(Found::File {
                inode: before,
                unsure,
                bytes: size,
                mode: permissions,
                ..
            }) if (before, size, permissions) == (number, bytes, mode) => unsure.clone(),
            _ => None,
        };
        self.differences.push(Difference::Written {
            path: path.clone(),
            over,
            bytes: *bytes,
            placeholder: *placeholder,
            unsure,
        });
    }

    fn look_for(&mut self, path: &RelativePath, before: &Known) {
        let now = self.found.get(path);
        let was_folder = matches!(before.here, Found::Folder { .. });
        let is_folder = matches!(now, Some(Found::Folder { .. }));
        if was_folder {
            if !is_folder {
                self.change(Change::FolderRemoved { path: path.clone() });
            }
            return;
        }
        // A file that replaced this one names what it replaces. A folder does not.
        if (now.is_none() || is_folder)
            && !self.moved_away.contains(path)
            && let Some(base) = before.home.clone()
        {
            let path = path.clone();
            self.change(Change::Removed { path, base });
        }
    }

    fn change(&mut self, change: Change) {
        self.differences.push(Difference::Change(change));
    }
}

pub(super) fn inode(found: &Found) -> Option<u64> {
    match found {
        Found::File { inode, .. } => Some(*inode),
        Found::Folder { .. } | Found::Link { .. } => None,
    }
}

fn same_bytes(before: &Found, now: &Found) -> bool {
    match (before, now) {
        (
            Found::File {
                inode: inode_before,
                bytes: bytes_before,
                modified_ns: before_ns,
                unsure,
                ..
            },
            Found::File {
                inode,
                bytes,
                modified_ns,
                placeholder,
                ..
            },
        ) => {
            inode == inode_before
                && (*placeholder
                    || (bytes == bytes_before && modified_ns == before_ns && unsure.is_none()))
        }
        _ => false,
    }
}
