//! The contents of the notebook's folder, and what the mirror does not know of them yet.

use crate::{
    FilesError, Root,
    copy_rules::{RULES, Rules},
    errors::at,
    folder::Status,
    links::inside,
    walk::walk,
};
use baton_protocol::files::{Entry, Listing, RelativePath, Stamp};
use serde_bytes::ByteBuf;
use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    fs::File,
    hash::{Hash as _, Hasher as _},
    io,
    path::Path,
};

/// The most entries of a listing. A larger folder is something else, such as a home folder full of environments.
pub const MOST_LISTED: usize = 20_000;

/// What the last listings told the mirror, and what else it knows.
#[derive(Debug, Default)]
pub struct HomeListing {
    number: u64,
    sent: BTreeMap<RelativePath, Entry>,
    /// Paths that the last cell changed.
    touched: BTreeSet<RelativePath>,
    /// Files that the last cell wrote, with their present versions.
    from_mirror: BTreeMap<RelativePath, Stamp>,
    /// What cells have made here, if it is copied only for that reason.
    made: BTreeSet<RelativePath>,
    not_applied: NotApplied,
}

impl HomeListing {
    /// Returns the next listing: complete, or the changes. Paths in folders that could not be read
    /// count as unchanged, and so do those whose changes the mirror will send again.
    pub fn next(&mut self, seen: Seen, whole: bool) -> Listing {
        let base = (!whole && self.number > 0).then_some(self.number);
        if whole {
            self.sent.clear();
            self.touched.clear();
            self.from_mirror.clear();
        }
        let known = |path: &RelativePath, entry: &Entry| match entry {
            Entry::File { stamp, .. } => self.from_mirror.get(path) == Some(stamp),
            _ => false,
        };
        let is_changed = |(path, entry): &(&RelativePath, &Entry)| {
            self.sent.get(*path) != Some(*entry) && !self.not_applied.covers(path, Some(entry))
        };
        let changed: Vec<_> = seen.entries.iter().filter(is_changed).collect();
        let listing = Listing {
            base,
            number: self.number + 1,
            known: changed
                .iter()
                .filter(|(path, entry)| known(path, entry))
                .map(|(path, _)| (*path).clone())
                .collect(),
            changed: changed
                .into_iter()
                .map(|(path, entry)| (path.clone(), entry.clone()))
                .collect(),
            gone: self
                .sent
                .keys()
                .chain(&self.touched)
                .filter(|path| seen.lacks(path) && !self.not_applied.covers(path, None))
                .cloned()
                .collect(),
            cut: seen.cut,
            not_applied: !self.not_applied.paths.is_empty(),
        };
        self.number = listing.number;
        self.made.retain(|path| seen.knows_nothing_of(path));
        self.made.extend(seen.made.iter().cloned());
        let not_applied = &self.not_applied;
        let stays = |path: &RelativePath| {
            seen.knows_nothing_of(path) || not_applied.covers(path, seen.entries.get(path))
        };
        self.sent.retain(|path, _| stays(path));
        self.touched.retain(stays);
        self.from_mirror.retain(|path, _| stays(path));
        let listed = seen.entries.into_iter();
        self.sent
            .extend(listed.filter(|(path, entry)| !not_applied.covers(path, Some(entry))));
        listing
    }

    /// The number of files in the notebook's folder, as far as the mirror knows.
    #[must_use]
    pub fn files(&self) -> usize {
        let is_file = |entry: &&Entry| !matches!(entry, Entry::Folder { .. });
        self.sent.values().filter(is_file).count()
    }

    /// Whether the file was listed. Only listed files may be read.
    #[must_use]
    pub fn has_file(&self, path: &RelativePath) -> bool {
        matches!(self.sent.get(path), Some(Entry::File { .. }))
    }

    /// Records paths that a cell changed, whether or not the change was made here, so that the next
    /// listing includes them.
    pub fn touched(&mut self, paths: impl IntoIterator<Item = RelativePath>) {
        for path in paths {
            self.sent.remove(&path);
            self.touched.insert(path);
        }
    }

    /// What cells have made here. It is copied, whatever its name.
    #[must_use]
    pub fn made(&self) -> &BTreeSet<RelativePath> {
        &self.made
    }

    /// Records what a cell has made.
    pub fn were_made(&mut self, paths: impl IntoIterator<Item = RelativePath>) {
        self.made.extend(paths);
    }

    /// Records files that are as the mirror has them.
    pub fn is_as_in_mirror(&mut self, written: impl IntoIterator<Item = (RelativePath, Stamp)>) {
        self.from_mirror.extend(written);
    }

    /// Records the paths of the last cell's changes, none of which could be applied here. The mirror
    /// sends them again with those of the next cell.
    pub fn were_not_applied(&mut self, paths: BTreeSet<RelativePath>) {
        let folders = paths.iter().flat_map(folders_of).collect();
        self.not_applied = NotApplied { paths, folders };
    }

    /// Records that no earlier change waits any more, and returns the paths of those that did.
    pub fn none_is_left(&mut self) -> BTreeSet<RelativePath> {
        std::mem::take(&mut self.not_applied).paths
    }
}

/// Changes that are in the mirror only. What something else changes here at the same paths is listed
/// once they are applied, which finds the conflict.
#[derive(Debug, Default)]
struct NotApplied {
    paths: BTreeSet<RelativePath>,
    /// The folders that contain them.
    folders: BTreeSet<RelativePath>,
}

impl NotApplied {
    /// Whether listing this entry, or its absence, would overwrite one of the changes.
    fn covers(&self, path: &RelativePath, entry: Option<&Entry>) -> bool {
        let is_folder = matches!(entry, None | Some(Entry::Folder { .. }));
        self.paths.contains(path)
            || !is_folder && self.folders.contains(path)
            || folders_of(path).any(|folder| self.paths.contains(&folder))
    }
}

/// The folders that contain this path, below the notebook's folder.
fn folders_of(path: &RelativePath) -> impl Iterator<Item = RelativePath> {
    std::iter::successors(path.parent(), RelativePath::parent)
}

/// What was found in the notebook's folder.
#[derive(Debug)]
pub struct Seen {
    pub entries: BTreeMap<RelativePath, Entry>,
    /// Folders that were listed to the end; `None` stands for the notebook's folder itself.
    listed: BTreeSet<Option<RelativePath>>,
    /// Whether there is more.
    pub cut: bool,
    /// The first few paths that are not copied because they are hidden or a rule excludes them,
    /// without their contents.
    pub left_out: Vec<RelativePath>,
    /// Lines of `.batonignore` that have no effect.
    pub broken_rules: Vec<String>,
    /// Why some folders could not be read.
    pub errors: Vec<FilesError>,
    made: BTreeSet<RelativePath>,
}

impl Seen {
    /// Whether it is certain that the path does not exist.
    fn lacks(&self, path: &RelativePath) -> bool {
        !self.entries.contains_key(path) && !self.knows_nothing_of(path)
    }

    /// Whether the path is in a folder that could not be read to the end.
    fn knows_nothing_of(&self, path: &RelativePath) -> bool {
        let mut child = path.clone();
        loop {
            let folder = child.parent();
            if self.listed.contains(&folder) {
                let is_folder = matches!(self.entries.get(&child), Some(Entry::Folder { .. }));
                return is_folder && child != *path;
            }
            match folder {
                Some(folder) => child = folder,
                None => return true,
            }
        }
    }
}

/// Looks at the whole folder, up to `most` files and folders. `made` is copied, whatever its name.
#[must_use]
pub fn list(root: &Root, most: usize, made: &BTreeSet<RelativePath>) -> Seen {
    let mut seen = Seen {
        entries: BTreeMap::new(),
        listed: BTreeSet::new(),
        cut: false,
        left_out: Vec::new(),
        broken_rules: Vec::new(),
        errors: Vec::new(),
        made: BTreeSet::new(),
    };
    let rules = match Rules::read(root.folder(), made) {
        Ok(rules) => rules,
        Err(error) => {
            seen.errors.push(at(&root.path().join(RULES))(error));
            return seen;
        }
    };
    let walked = walk(root, most, Some(&rules));
    for (path, status) in walked.entries {
        if let Some(entry) = entry(root, &path, &status) {
            seen.entries.insert(path, entry);
        }
    }
    Seen {
        listed: walked.listed,
        cut: walked.cut,
        left_out: walked.left_out,
        broken_rules: rules.broken,
        errors: walked.errors,
        made: walked.made,
        ..seen
    }
}

/// `None` for what cannot be mirrored, such as sockets, and links to folders outside.
fn entry(root: &Root, path: &RelativePath, status: &Status) -> Option<Entry> {
    if status.is_folder() {
        let mode = status.mode & 0o777;
        return Some(Entry::Folder { mode });
    }
    if status.is_link() {
        let place = root.folder().at(path).ok()?;
        let target = place.read_link().ok()?;
        if let Some(target) = inside(root.path(), path, Path::new(&target)) {
            let target = ByteBuf::from(target);
            return Some(Entry::Link { target });
        }
        let status = place.followed_status().ok()?;
        return status.is_file().then(|| file(&status));
    }
    status.is_file().then(|| file(status))
}

fn file(status: &Status) -> Entry {
    Entry::File {
        stamp: stamp(status),
        bytes: status.bytes,
        modified_ns: status.modified_ns,
        mode: status.mode & 0o777,
    }
}

/// Opens a listed file. Follows only links to files outside, which a cell cannot make.
pub fn open_listed(root: &Root, path: &RelativePath) -> io::Result<File> {
    let place = root.folder().at(path)?;
    if !place.status()?.is_link() {
        return place.open_file();
    }
    match inside(root.path(), path, Path::new(&place.read_link()?)) {
        None => place.open_followed(),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
    }
}

/// A file is unchanged for as long as this value is.
#[must_use]
pub fn stamp(status: &Status) -> Stamp {
    let mut hasher = DefaultHasher::new();
    status.device.hash(&mut hasher);
    status.inode.hash(&mut hasher);
    status.bytes.hash(&mut hasher);
    status.modified_ns.hash(&mut hasher);
    (status.mode & 0o777).hash(&mut hasher);
    Stamp(hasher.finish())
}
