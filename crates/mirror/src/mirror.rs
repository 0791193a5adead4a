//! A mirror of the notebook's folder: the folder in which a session works if it cannot access the real one.
//!
//! In: listings from home, and contents when files are read. Out: the changes of a cell.
//!
//! **Invariant:** for each path the mirror knows its state here and at home. Files that a cell made
//! and that could not be sent home are unknown to it, and no listing touches them.

pub(crate) mod compare;
pub(crate) mod placeholders;
mod removals;
mod unconfirmed;

use self::{
    compare::{Difference, Found, Known, compare},
    placeholders::{Filling, Placeholder, Placeholders, make_hole},
    removals::{Removals, removed},
    unconfirmed::Unconfirmed,
};
use crate::{
    FilesError, Root,
    content::time,
    errors::at,
    folder::{Folder, Place, Status, is_absent},
    home::listing::MOST_LISTED,
    walk::walk,
};
use baton_protocol::{
    Piece,
    files::{Base, Content, Entry, Listing, RelativePath},
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ffi::OsStr,
    fs::{self, File, Permissions},
    io,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::PermissionsExt as _,
    },
    path::Path,
    time::{Duration, SystemTime},
};

/// A file system's clock may stand still for this long.
const SAME_TIME: Duration = Duration::from_millis(20);

pub struct Mirror {
    root: Root,
    /// A folder on the same file system, in which files are made before they are put in place.
    beside: Folder,
    known: BTreeMap<RelativePath, Known>,
    placeholders: Placeholders,
    removals: Removals,
    /// The changes that were sent since the last listing.
    unconfirmed: Unconfirmed,
    listing: Option<u64>,
    /// Whether something was missing that no cell was seen removing.
    damaged: bool,
}

/// The contents of a mirror after a cell.
pub struct Scan {
    found: BTreeMap<RelativePath, Found>,
    pub differences: Vec<Difference>,
    /// Names that are gone without a proof that the cell removed them. They are not differences.
    pub missing: Vec<RelativePath>,
    /// Whether there is more than was looked at. Then no name counts as gone.
    pub cut: bool,
}

impl Mirror {
    /// Makes an empty mirror in `folder`; `name` is the name of the notebook's folder.
    pub fn create(folder: &Path, name: &OsStr) -> Result<Self, FilesError> {
        let (root, beside) = (folder.join("mirror").join(name), folder.join("waiting"));
        for path in [&root, &beside] {
            fs::create_dir_all(path).map_err(at(path))?;
        }
        Ok(Self {
            root: Root::open(&root.canonicalize().map_err(at(&root))?)?,
            beside: Folder::open(&beside).map_err(at(&beside))?,
            known: BTreeMap::new(),
            placeholders: Placeholders::default(),
            removals: Removals::default(),
            unconfirmed: Unconfirmed::default(),
            listing: None,
            damaged: false,
        })
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The open folder through which everything in the mirror is reached.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        self.root.folder()
    }

    /// Fails if the mirror is lost: its folder is gone or was replaced.
    pub fn check(&self) -> Result<(), FilesError> {
        self.root.check()
    }

    #[must_use]
    pub fn placeholders(&self) -> Placeholders {
        self.placeholders.clone()
    }

    /// From now on, the caller reports every name that a cell removes to [`Mirror::is_being_removed`].
    pub fn removals_are_seen(&mut self) {
        self.removals.are_seen = true;
    }

    /// A process is about to remove a name from a folder, or to give it to another file.
    pub fn is_being_removed(&mut self, folder: &Status, name: &OsStr) {
        if folder.device != self.root.device() {
            return;
        }
        let path = match folder.inode == self.root.inode() {
            true => RelativePath::new(name.as_bytes()).ok(),
            false => self.removals.path_in(folder.inode, name),
        };
        if let Some(path) = path.filter(|path| self.known.contains_key(path)) {
            self.removals.saw(path);
        }
    }

    /// Whether files were missing that no cell was seen removing.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Whether this listing includes everything that this mirror lacks.
    #[must_use]
    pub fn continues(&self, listing: &Listing) -> bool {
        listing.base.is_none() || listing.base == self.listing
    }

    /// Makes the mirror equal to home.
    pub fn sync(&mut self, listing: &Listing) -> Result<(), FilesError> {
        if !self.continues(listing) {
            return Err(FilesError::OutOfStep);
        }
        if listing.changed.len() > MOST_LISTED {
            return Err(FilesError::TooLarge);
        }
        self.listing = Some(listing.number);
        let unconfirmed = std::mem::take(&mut self.unconfirmed);
        let kept = match listing.not_applied {
            true => self.take_back(unconfirmed),
            false => BTreeSet::new(),
        };
        let changed: BTreeMap<_, _> = listing
            .changed
            .iter()
            .map(|(path, to)| (path, to))
            .collect();
        let from_here: BTreeSet<_> = listing.known.iter().collect();
        let mut gone: BTreeSet<RelativePath> = listing.gone.iter().cloned().collect();
        if listing.base.is_none() {
            let unknown =
                |path: &&RelativePath| !changed.contains_key(path) && !kept.contains(path);
            gone.extend(self.known.keys().filter(unknown).cloned());
        }
        for path in gone.iter().rev() {
            self.remove(path)
                .map_err(|error| self.failed(path, error))?;
        }
        for (path, entry) in changed {
            self.apply_entry(path, entry, from_here.contains(path))
                .map_err(|error| self.failed(path, error))?;
        }
        Ok(())
    }

    /// Changes that were sent could not be applied at home, so they are differences again. Returns their paths.
    fn take_back(&mut self, unconfirmed: Unconfirmed) -> BTreeSet<RelativePath> {
        let paths = unconfirmed.before.keys().cloned().collect();
        for (path, before) in unconfirmed.before {
            let Some(Known { home, here }) = before else {
                self.forget(&path);
                continue;
            };
            if let Some(inode) = compare::inode(&here) {
                self.placeholders.moved(inode, &path);
            }
            self.know(&path, home, here);
        }
        for path in unconfirmed.removed {
            self.removals.saw(path);
        }
        paths
    }

    /// Files that the text names and that have no bytes here yet, smallest first, up to the limit.
    #[must_use]
    pub fn named_in(&self, text: &str, limit_bytes: u64) -> Vec<RelativePath> {
        let separators =
            |letter: char| letter.is_whitespace() || "'\"`,;()[]{}=<>|&".contains(letter);
        let mut words: BTreeSet<&[u8]> = BTreeSet::new();
        for word in text.split(separators).chain(text.split(['\'', '"'])) {
            words.insert(word.trim_start_matches("./").as_bytes());
        }
        let is_named = |(_, path): &(u64, &RelativePath)| {
            let name = path.as_path().file_name().map_or(&b""[..], OsStr::as_bytes);
            words.contains(path.as_bytes()) || words.contains(name)
        };
        fitting(self.without_bytes().filter(is_named), limit_bytes)
    }

    /// Files that have no bytes here yet, smallest first, up to the limit; the flag says whether
    /// there are more.
    #[must_use]
    pub fn waiting(&self, limit_bytes: u64) -> (Vec<RelativePath>, bool) {
        let fitting = fitting(self.without_bytes(), limit_bytes);
        let more = fitting.len() < self.without_bytes().count();
        (fitting, more)
    }

    /// Files that have no bytes here yet, with their sizes at home.
    fn without_bytes(&self) -> impl Iterator<Item = (u64, &RelativePath)> {
        self.known
            .iter()
            .filter_map(|(path, known)| match known.here {
                Found::File {
                    placeholder: true,
                    bytes,
                    ..
                } => Some((bytes, path)),
                _ => None,
            })
    }

    /// Records that the placeholder's file was filled with the present content at home. If a cell
    /// changed its permissions before it read the file, that remains a difference.
    pub fn filled(&mut self, filling: Filling, content: &Content) -> Result<(), FilesError> {
        let failed = || at(self.root.path());
        let file = &filling.file;
        file.set_modified(time(content.modified_ns))
            .map_err(failed())?;
        let status = Status::from(&file.metadata().map_err(failed())?);
        self.placeholders.forget(status.inode);
        let now = found_file(&status, None);
        let mut now = with_bytes(&now, Some(&content.pieces), &HashSet::new());
        let of_inode = |known: &&mut Known| compare::inode(&known.here) == Some(status.inode);
        let Some(known) = self.known.values_mut().find(of_inode) else {
            return Ok(());
        };
        if let (Found::File { mode, .. }, Found::File { mode: before, .. }) =
            (&mut now, &known.here)
        {
            let home = content.mode & 0o777;
            if mode == before {
                file.set_permissions(Permissions::from_mode(home))
                    .map_err(at(self.root.path()))?;
            }
            *mode = home;
        }
        known.home = content.stamp.map(Base::File);
        known.here = now;
        Ok(())
    }

    /// Returns the differences from the last listing, among up to `most` files and folders. After an error the mirror
    /// is lost, because the cell's changes cannot be known.
    pub fn scan(&self, most: usize) -> Result<Scan, FilesError> {
        let walked = walk(&self.root, most, None);
        if let Some(error) = walked.errors.into_iter().next() {
            return Err(error);
        }
        let mut found = BTreeMap::new();
        for (path, status) in walked.entries {
            // A file's device number says nothing: on layered file systems each file may have another one.
            if status.is_folder() && status.device != self.root.device() {
                let path = self.root().join(path.as_path());
                return Err(FilesError::OtherFileSystem { path });
            }
            if status.is_folder() {
                found.insert(path, found_folder(&status));
            } else if status.is_link() {
                let target = self.folder().at(&path).and_then(|place| place.read_link());
                let target = target.map_err(|error| self.failed(&path, error))?;
                let target = target.into_vec();
                found.insert(path, Found::Link { target });
            } else if status.is_file() {
                let again = || self.folder().at(&path)?.status();
                let placeholder = self.placeholders.find(&status, again);
                found.insert(path, found_file(&status, placeholder.as_ref()));
            }
        }
        let now = match walked.cut {
            true => Cow::Owned(self.with_unseen(&found)),
            false => Cow::Borrowed(&found),
        };
        let differences = compare(&self.known, &now);
        let (differences, missing) = self.removals.proven(&self.known, &now, differences);
        Ok(Scan {
            found,
            differences,
            missing,
            cut: walked.cut,
        })
    }

    /// Adds what is known and was not found, as if it were unchanged.
    fn with_unseen(&self, found: &BTreeMap<RelativePath, Found>) -> BTreeMap<RelativePath, Found> {
        let known = self.known.iter();
        let mut all: BTreeMap<_, _> = known
            .map(|(path, known)| (path.clone(), known.here.clone()))
            .collect();
        all.extend(found.clone());
        all
    }

    /// Records that these differences are being sent home. They are differences again if the next
    /// listing says that they could not be applied there. `written` has the bytes of files that
    /// were read to find out whether they differ; those that are not sent have the same bytes as
    /// before. All other differences remain. `mapped` has the inodes of files to which a process
    /// may write through its memory: the system need not give such a file a new time.
    pub fn adopt(
        &mut self,
        scan: &Scan,
        sent: &[Difference],
        written: &HashMap<RelativePath, Content>,
        mapped: &HashSet<u64>,
    ) {
        self.damaged |= !scan.missing.is_empty();
        self.removals.end_cell(&scan.found);
        // Those that are not sent will be found again, and then need no other proof.
        for path in scan.differences.iter().filter_map(removed) {
            self.removals.saw(path.clone());
        }
        self.forget_written(&scan.found);
        self.unconfirmed.note(sent, &self.known);
        for difference in sent {
            match difference {
                Difference::Change(baton_protocol::files::Change::Moved { from, path, .. }) => {
                    // Another file may have been moved to the old path.
                    if !sent.iter().any(|other| other.path() == from) {
                        self.forget(from);
                    }
                    self.adopt_one(scan, path, None, mapped);
                }
                Difference::Change(_) => self.adopt_one(scan, difference.path(), None, mapped),
                Difference::Written { path, .. } => {
                    let pieces = written.get(path).map(|content| content.pieces.as_slice());
                    self.adopt_one(scan, path, pieces, mapped);
                }
            }
        }
        for (path, content) in written {
            if let (Some(now), Some(known)) = (scan.found.get(path), self.known.get_mut(path))
                && !sent.iter().any(|difference| difference.path() == path)
            {
                known.here = with_bytes(now, Some(&content.pieces), mapped);
            }
        }
    }

    fn adopt_one(
        &mut self,
        scan: &Scan,
        path: &RelativePath,
        pieces: Option<&[Piece]>,
        mapped: &HashSet<u64>,
    ) {
        let Some(now) = scan.found.get(path) else {
            self.forget(path);
            return;
        };
        if let Found::File { inode, .. } = now {
            self.placeholders.moved(*inode, path);
        }
        self.know(path, None, with_bytes(now, pieces, mapped));
    }

    /// Placeholders that a cell wrote are files like others from now on.
    fn forget_written(&self, found: &BTreeMap<RelativePath, Found>) {
        for found in found.values() {
            if let Found::File {
                inode,
                placeholder: false,
                ..
            } = found
            {
                self.placeholders.forget(*inode);
            }
        }
    }

    /// Opens a placeholder's file, to fill it; none if the path now has something else.
    pub fn open_placeholder(&self, path: &RelativePath) -> Result<Option<File>, FilesError> {
        let handle = self.folder().at(path).and_then(|place| place.handle());
        let opened = handle.and_then(|handle| self.placeholders.open(&handle));
        match opened {
            Err(error) if is_absent(&error) => Ok(None),
            opened => {
                let opened = opened.map_err(|error| self.failed(path, error))?;
                Ok(opened.map(|(file, _)| file))
            }
        }
    }

    /// Opens a file that the scan found; none if its name has been given to something else since.
    pub fn open_found(&self, scan: &Scan, path: &RelativePath) -> Result<Option<File>, FilesError> {
        let opened = self.folder().at(path).and_then(|place| place.open_file());
        let file = match opened {
            Err(error) if is_absent(&error) => return Ok(None),
            opened => opened.map_err(|error| self.failed(path, error))?,
        };
        let status = Status::from(&file.metadata().map_err(|error| self.failed(path, error))?);
        let is_same = scan.found.get(path).and_then(compare::inode) == Some(status.inode);
        Ok(is_same.then_some(file))
    }

    fn failed(&self, path: &RelativePath, error: io::Error) -> FilesError {
        at(&self.root().join(path.as_path()))(error)
    }

    fn remove(&mut self, path: &RelativePath) -> io::Result<()> {
        let Some(known) = self.forget(path) else {
            return Ok(());
        };
        if let Found::File { inode, .. } = known.here {
            self.placeholders.forget(inode);
        }
        let removed = self.folder().at(path).and_then(|place| match &known.here {
            Found::Folder { .. } => place.remove_folder(),
            Found::File { .. } | Found::Link { .. } => place.remove_file(),
        });
        match removed {
            // The folder has files that a cell made and that could not be sent home.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            removed => removed,
        }
    }

    fn apply_entry(
        &mut self,
        path: &RelativePath,
        entry: &Entry,
        from_here: bool,
    ) -> io::Result<()> {
        let known = self.known.get_mut(path);
        match entry {
            Entry::Folder { mode } => {
                let there = self.root.folder().at(path).and_then(|place| place.status());
                if !there.is_ok_and(|there| there.is_folder()) {
                    self.clear(path)?.make_folder(0o777)?;
                }
                // Processes here must be able to enter it.
                let made = self.folder().at(path)?.set_mode(*mode | 0o700)?;
                self.know(path, None, found_folder(&made));
            }
            Entry::Link { target } => {
                let home = Some(Base::Link {
                    target: target.clone(),
                });
                let here = Found::Link {
                    target: target.to_vec(),
                };
                if known.is_none_or(|known| known.here != here) {
                    self.clear(path)?.make_link(OsStr::from_bytes(target))?;
                }
                self.know(path, home, here);
            }
            Entry::File {
                stamp,
                bytes,
                modified_ns,
                mode,
            } => {
                let home = Some(Base::File(*stamp));
                if let Some(known) = known
                    && matches!(known.here, Found::File { .. })
                    && (from_here || known.home == home)
                {
                    known.home = home;
                    return Ok(());
                }
                let place = self.clear(path)?;
                let status = self.make_placeholder(&place, *bytes, *modified_ns, *mode)?;
                let insert = || self.placeholders.insert(path.clone(), &status);
                let placeholder = (*bytes > 0).then(insert);
                self.know(path, home, found_file(&status, placeholder.as_ref()));
            }
        }
        Ok(())
    }

    fn know(&mut self, path: &RelativePath, home: Option<Base>, here: Found) {
        self.removals.know(path, &here);
        self.known.insert(path.clone(), Known { home, here });
    }

    fn forget(&mut self, path: &RelativePath) -> Option<Known> {
        let known = self.known.remove(path)?;
        self.removals.forget(path, &known.here);
        Some(known)
    }

    /// Removes what is at this path, to make room for another kind or version.
    fn clear(&mut self, path: &RelativePath) -> io::Result<Place> {
        if let Some(parent) = path.parent() {
            self.folder().make_folders(&parent)?;
        }
        self.remove(path)?;
        let place = self.folder().at(path)?;
        place.remove_tree()?;
        Ok(place)
    }

    fn make_placeholder(
        &self,
        place: &Place,
        bytes: u64,
        modified_ns: i64,
        mode: u32,
    ) -> io::Result<Status> {
        let waiting = self.beside.child("placeholder");
        // It may remain from an attempt that was interrupted.
        waiting.remove_tree()?;
        let file = waiting.create_file()?;
        make_hole(&file, bytes, modified_ns)?;
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        waiting.rename_to(place)?;
        Ok(Status::from(&file.metadata()?))
    }
}

/// The smallest of these files that together do not exceed the limit.
fn fitting<'a>(
    files: impl Iterator<Item = (u64, &'a RelativePath)>,
    limit_bytes: u64,
) -> Vec<RelativePath> {
    let mut files: Vec<_> = files.collect();
    files.sort_unstable();
    let mut total: u64 = 0;
    let fitting = files.into_iter().take_while(|(bytes, _)| {
        total = total.saturating_add(*bytes);
        total <= limit_bytes
    });
    fitting.map(|(_, path)| path.clone()).collect()
}

fn found_folder(status: &Status) -> Found {
    Found::Folder {
        inode: status.inode,
        mode: status.mode & 0o777,
    }
}

/// While a placeholder is being filled, its size and time are those that it had before.
fn found_file(status: &Status, placeholder: Option<&Placeholder>) -> Found {
    let (bytes, modified_ns) = match placeholder {
        Some(placeholder) => (placeholder.bytes, placeholder.modified_ns),
        None => (status.bytes, status.modified_ns),
    };
    Found::File {
        inode: status.inode,
        bytes,
        modified_ns,
        mode: status.mode & 0o777,
        placeholder: placeholder.is_some(),
        unsure: None,
    }
}

/// Keeps the bytes of a file that may change again without a new time.
fn with_bytes(now: &Found, pieces: Option<&[Piece]>, mapped: &HashSet<u64>) -> Found {
    let mut here = now.clone();
    if let Found::File {
        inode,
        modified_ns,
        unsure,
        ..
    } = &mut here
    {
        *unsure = pieces
            .filter(|_| is_recent(*modified_ns) || mapped.contains(inode))
            .map(<[_]>::to_vec);
    }
    here
}

fn is_recent(modified_ns: i64) -> bool {
    let modified = time(modified_ns);
    SystemTime::now()
        .duration_since(modified)
        .map_or(true, |age| age < SAME_TIME)
}
