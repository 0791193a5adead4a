//! Home, mirror, and a replacement for the transport between them.

use baton_mirror::{
    Committed, ContentReader, ContentWriter, Difference, FilesError, Filling, Handle, HomeListing,
    Mirror, Root, Scan, Seen, Staging, Status, Trash, list, open_listed, stamp,
};
use baton_protocol::{
    ChunkHash, JobKind,
    files::{Change, Content, Listing, RelativePath},
};
use bytes::Bytes;
use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ffi::OsStr,
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// No cell has made any file.
pub(crate) const NOTHING: BTreeSet<RelativePath> = BTreeSet::new();

pub(crate) struct Pair {
    pub(crate) home: PathBuf,
    root: Root,
    pub(crate) mirror: Mirror,
    /// The inodes of files that a process has mapped into its memory.
    pub(crate) mapped: HashSet<u64>,
    listing: HomeListing,
    chunks: HashMap<ChunkHash, Bytes>,
    folder: TempDir,
}

/// What is about to happen to a file of the mirror.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before {
    Opening,
    /// Opening it in order to empty it.
    Emptying,
    /// Removing its name, or giving the name to another file.
    Removing,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("course");
        fs::create_dir(&home).unwrap();
        Self {
            mirror: new_mirror(folder.path()),
            root: Root::open(&home).unwrap(),
            home,
            mapped: HashSet::new(),
            listing: HomeListing::default(),
            chunks: HashMap::new(),
            folder,
        }
    }

    /// Replaces a lost mirror, as a worker does.
    pub(crate) fn begin_again(&mut self) {
        for name in ["mirror", "waiting"] {
            fs::remove_dir_all(self.folder.path().join(name)).unwrap();
        }
        self.mirror = new_mirror(self.folder.path());
        self.listing = HomeListing::default();
    }

    /// Runs one cell: what `work` does in the mirror is repeated at home.
    pub(crate) fn cell(&mut self, work: impl FnOnce(&mut Self)) -> Vec<String> {
        self.sync();
        work(self);
        self.commit_home().keep()
    }

    pub(crate) fn sync(&mut self) -> Listing {
        self.sync_with(self.look())
    }

    pub(crate) fn look(&self) -> Seen {
        list(&self.root, 10_000, self.listing.made())
    }

    pub(crate) fn sync_with(&mut self, seen: Seen) -> Listing {
        let listing = self.listing.next(seen, false);
        self.mirror.sync(&listing).unwrap();
        listing
    }

    pub(crate) fn trash(&self) -> Trash {
        Trash::of(&self.home, &self.state_folder())
    }

    fn state_folder(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Makes the state folder unusable, so that the trash can only be beside the notebook.
    pub(crate) fn spoil_state_folder(&self) {
        fs::write(self.state_folder(), "not a folder").unwrap();
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// A staging folder at home for a cell's changes.
    pub(crate) fn stage(&self) -> Result<Staging, FilesError> {
        Staging::create(&self.root, &self.trash())
    }

    pub(crate) fn commit_home(&mut self) -> Committed {
        let scan = self.mirror.scan(usize::MAX).unwrap();
        self.commit(scan)
    }

    pub(crate) fn commit(&mut self, scan: Scan) -> Committed {
        self.commit_by(scan, |staging| baton_mirror::commit(staging, JobKind::Cell))
    }

    pub(crate) fn commit_by(
        &mut self,
        scan: Scan,
        commit: impl FnOnce(Staging) -> Committed,
    ) -> Committed {
        let (changes, written) = self.changes_of(scan);
        let mut staging = self.stage().unwrap();
        self.listing
            .touched(changes.iter().flat_map(Change::paths).cloned());
        for change in changes {
            if let Some((file, content)) = staging.add(change).unwrap() {
                self.write(file, &content);
            }
        }
        let committed = commit(staging);
        self.listing.none_is_left();
        self.listing.is_as_in_mirror(committed.written.clone());
        self.listing.were_made(committed.made.clone());
        drop(written);
        committed
    }

    /// Runs one cell whose changes cannot be applied at home.
    pub(crate) fn unapplied_cell(&mut self, work: impl FnOnce(&mut Self)) {
        self.sync();
        work(self);
        let scan = self.mirror.scan(usize::MAX).unwrap();
        self.lose(scan);
    }

    /// Sends the changes, which cannot be applied at home.
    pub(crate) fn lose(&mut self, scan: Scan) {
        let (changes, _) = self.changes_of(scan);
        let paths = changes.iter().flat_map(Change::paths).cloned().collect();
        self.listing.were_not_applied(paths);
    }

    /// The changes that a worker sends.
    fn changes_of(&mut self, scan: Scan) -> (Vec<Change>, HashMap<RelativePath, Content>) {
        let mut changes = Vec::new();
        let mut sent = Vec::new();
        let mut written = HashMap::new();
        for difference in scan.differences.clone() {
            match &difference {
                Difference::Change(change) => changes.push(change.clone()),
                Difference::Written {
                    path, over, unsure, ..
                } => {
                    self.fill(&self.mirror.root().join(path.as_path()));
                    let file = self.mirror.open_found(&scan, path).unwrap();
                    let content = self.read(file.unwrap());
                    written.insert(path.clone(), content.clone());
                    if unsure.as_ref() == Some(&content.pieces) {
                        continue;
                    }
                    changes.push(Change::Written {
                        path: path.clone(),
                        over: over.clone(),
                        content,
                    });
                }
            }
            sent.push(difference);
        }
        self.mirror.adopt(&scan, &sent, &written, &self.mapped);
        (changes, written)
    }

    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mirror.root().join(name)
    }

    /// Does what a worker does when a session opens a file.
    pub(crate) fn fill(&mut self, place: &Path) {
        let Some((filling, content)) = self.begin_to_fill(place) else {
            return;
        };
        let filling = self.write(filling, &content);
        self.mirror.filled(filling, &content).unwrap();
    }

    /// What a worker has when the answer to its question has arrived; none if it does not ask.
    pub(crate) fn begin_to_fill(&mut self, place: &Path) -> Option<(Filling, Content)> {
        if !place.is_file() {
            return None;
        }
        let handle = Handle::find(place).unwrap();
        let placeholders = self.mirror.placeholders();
        let (file, placeholder) = placeholders.open(&handle).unwrap()?;
        let at_home = open_listed(&self.root, &placeholder.path).unwrap();
        let stamp = stamp(&Status::from(&at_home.metadata().unwrap()));
        let mut content = self.read(at_home);
        content.stamp = Some(stamp);
        Some((placeholders.fill(file).unwrap()?, content))
    }

    /// Does what a worker does when a session is about to do this.
    pub(crate) fn before(&mut self, place: &Path, what: Before) {
        match what {
            Before::Opening => self.fill(place),
            Before::Emptying => {
                if let Ok(metadata) = fs::metadata(place) {
                    let placeholders = self.mirror.placeholders();
                    assert!(placeholders.may_be_emptied(&Status::from(&metadata)));
                }
            }
            Before::Removing => {
                if let Ok(folder) = fs::metadata(place.parent().unwrap()) {
                    let name = place.file_name().unwrap();
                    self.mirror.is_being_removed(&Status::from(&folder), name);
                }
            }
        }
    }

    /// The path of something that a cell is about to remove, rename, or replace by renaming.
    pub(crate) fn removing(&mut self, name: impl AsRef<Path>) -> PathBuf {
        let place = self.at(name);
        self.before(&place, Before::Removing);
        place
    }

    fn read(&mut self, file: File) -> Content {
        let bytes = file.metadata().unwrap().len();
        let mut reader = ContentReader::new(file, bytes);
        loop {
            let batch = reader.next_batch().unwrap();
            if batch.is_empty() {
                return reader.finish().unwrap();
            }
            self.chunks.extend(batch);
        }
    }

    pub(crate) fn write<F: Borrow<File>>(&self, file: F, content: &Content) -> F {
        let mut writer = ContentWriter::new(file, content).unwrap();
        for hash in writer.wanted() {
            writer.place(hash, &self.chunks[&hash]).unwrap();
        }
        writer.finish().unwrap()
    }
}

fn new_mirror(folder: &Path) -> Mirror {
    let mut mirror = Mirror::create(folder, OsStr::new("course")).unwrap();
    mirror.removals_are_seen();
    mirror
}

/// Kind, permissions and content of everything in a folder except the trash.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, (String, u32)> {
    let mut tree = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".baton") {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).unwrap();
            let what = if metadata.is_dir() {
                folders.push(path.clone());
                "folder".to_owned()
            } else if metadata.is_symlink() {
                format!("link to {:?}", fs::read_link(&path).unwrap())
            } else {
                let hash = baton_chunks::hash(&fs::read(&path).unwrap());
                format!("{} bytes, {hash}", metadata.len())
            };
            let mode = match metadata.is_file() {
                true => metadata.permissions().mode() & 0o777,
                false => 0,
            };
            tree.insert(path.strip_prefix(folder).unwrap().to_owned(), (what, mode));
        }
    }
    tree
}
