//! What lies in the notebook's folder, and what of it the mirror has not heard yet.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use baton_protocol::files::{Entry, Listing, RelativePath, Stamp};
use serde_bytes::ByteBuf;

use crate::content::modified_ns;
use crate::links::inside;
use crate::walk::walk;
use crate::{FilesError, Root};

/// What a mirror was told last, and what it knows besides.
#[derive(Debug, Default)]
pub struct HomeListing {
    number: u64,
    told: BTreeMap<RelativePath, Entry>,
    /// Where the last cell changed something.
    touched: BTreeSet<RelativePath>,
    /// What the last cell wrote, as it lies here now.
    from_mirror: BTreeMap<RelativePath, Stamp>,
}

impl HomeListing {
    /// What to say now: everything, or what has changed. What lies where nobody could look counts as unchanged.
    pub fn next(&mut self, seen: Seen, whole: bool) -> Listing {
        let base = (!whole && self.number > 0).then_some(self.number);
        if whole {
            self.told.clear();
            self.touched.clear();
            self.from_mirror.clear();
        }
        let known = |path: &RelativePath, entry: &Entry| match entry {
            Entry::File { stamp, .. } => self.from_mirror.get(path) == Some(stamp),
            _ => false,
        };
        let is_news =
            |(path, entry): &(&RelativePath, &Entry)| self.told.get(*path) != Some(*entry);
        let changed: Vec<_> = seen.entries.iter().filter(is_news).collect();
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
                .told
                .keys()
                .chain(&self.touched)
                .filter(|path| seen.lacks(path))
                .cloned()
                .collect(),
            cut: seen.cut,
        };
        self.number = listing.number;
        self.told.retain(|path, _| seen.knows_nothing_of(path));
        self.touched.retain(|path| seen.knows_nothing_of(path));
        self.from_mirror
            .retain(|path, _| seen.knows_nothing_of(path));
        self.told.extend(seen.entries);
        listing
    }

    /// How many files the notebook's folder has, as far as a mirror was told.
    #[must_use]
    pub fn files(&self) -> usize {
        let is_file = |entry: &&Entry| !matches!(entry, Entry::Folder { .. });
        self.told.values().filter(is_file).count()
    }

    /// Only what was listed may be read.
    #[must_use]
    pub fn has_file(&self, path: &RelativePath) -> bool {
        matches!(self.told.get(path), Some(Entry::File { .. }))
    }

    /// A cell changed something at these paths, whether or not it is so here now: the mirror has to hear of them.
    pub fn touched(&mut self, paths: impl IntoIterator<Item = RelativePath>) {
        for path in paths {
            self.told.remove(&path);
            self.touched.insert(path);
        }
    }

    /// These files are as the mirror has them.
    pub fn came_from_mirror(&mut self, written: impl IntoIterator<Item = (RelativePath, Stamp)>) {
        self.from_mirror.extend(written);
    }
}

/// What a look at the notebook's folder found.
#[derive(Debug)]
pub struct Seen {
    pub entries: BTreeMap<RelativePath, Entry>,
    /// Folders of which every name is among the entries; none is the notebook's folder itself.
    listed: BTreeSet<Option<RelativePath>>,
    /// There is more.
    pub cut: bool,
    /// Why some folders could not be read.
    pub errors: Vec<FilesError>,
}

impl Seen {
    /// Whether it is certain that nothing is there.
    fn lacks(&self, path: &RelativePath) -> bool {
        !self.entries.contains_key(path) && !self.knows_nothing_of(path)
    }

    /// Whether the path leads into a folder that nobody could read to its end.
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

/// Looks at the whole folder, up to `most` files and folders.
#[must_use]
pub fn list(root: &Root, most: usize) -> Seen {
    let walked = walk(root, most);
    let mut entries = BTreeMap::new();
    for (path, metadata) in walked.entries {
        if let Some(entry) = entry(root.path(), &path, &metadata) {
            entries.insert(path, entry);
        }
    }
    Seen {
        entries,
        listed: walked.listed,
        cut: walked.cut,
        errors: walked.errors,
    }
}

/// `None` for what cannot be mirrored: sockets and the like, and links to folders elsewhere.
fn entry(root: &Path, path: &RelativePath, metadata: &Metadata) -> Option<Entry> {
    if metadata.is_dir() {
        let mode = metadata.mode() & 0o777;
        return Some(Entry::Folder { mode });
    }
    if metadata.is_symlink() {
        let place = root.join(path.as_path());
        let target = fs::read_link(&place).ok()?;
        if let Some(target) = inside(root, path, &target) {
            let target = ByteBuf::from(target);
            return Some(Entry::Link { target });
        }
        let metadata = fs::metadata(&place).ok()?;
        return metadata.is_file().then(|| file(&metadata));
    }
    metadata.is_file().then(|| file(metadata))
}

fn file(metadata: &Metadata) -> Entry {
    Entry::File {
        stamp: stamp(metadata),
        bytes: metadata.len(),
        modified_ns: modified_ns(metadata),
        mode: metadata.mode() & 0o777,
    }
}

/// As long as it is the same, the file is.
#[must_use]
pub fn stamp(metadata: &Metadata) -> Stamp {
    let mut hasher = DefaultHasher::new();
    metadata.dev().hash(&mut hasher);
    metadata.ino().hash(&mut hasher);
    metadata.len().hash(&mut hasher);
    modified_ns(metadata).hash(&mut hasher);
    (metadata.mode() & 0o777).hash(&mut hasher);
    Stamp(hasher.finish())
}
