//! A mirror of the notebook's folder: what a session works in where it does not see the folder itself.
//!
//! In: listings from home, and contents as somebody reads them. Out: what a cell changed.
//!
//! **Invariant:** what the mirror knows of a path is how it lies there and how it lies at home; what a cell made and
//! could not bring home is nobody's, and no listing touches it.

pub(crate) mod compare;
pub(crate) mod placeholders;
mod removals;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use baton_protocol::Piece;
use baton_protocol::files::{Base, Content, Entry, Listing, RelativePath};

use self::compare::{Difference, Found, Known, compare};
use self::placeholders::Placeholders;
use self::removals::Removals;
use crate::content::{modified_ns, time};
use crate::errors::at;
use crate::walk::walk;
use crate::{FilesError, Root};

/// The clock of a file system may stand still for so long.
const SAME_TIME: Duration = Duration::from_millis(20);

pub struct Mirror {
    root: Root,
    /// On the same file system, where files are made before they have their place.
    beside: PathBuf,
    known: BTreeMap<RelativePath, Known>,
    placeholders: Placeholders,
    removals: Removals,
    listing: Option<u64>,
    /// Something was missing that no cell was seen removing.
    damaged: bool,
}

/// What lies in a mirror after a cell.
pub struct Scan {
    found: BTreeMap<RelativePath, Found>,
    pub differences: Vec<Difference>,
    /// Names that are gone, without a proof that the cell removed them: no differences.
    pub missing: Vec<RelativePath>,
}

impl Mirror {
    /// Makes an empty one in `folder`; `name` is what the notebook's folder is called.
    pub fn create(folder: &Path, name: &OsStr) -> Result<Self, FilesError> {
        let (root, beside) = (folder.join("mirror").join(name), folder.join("waiting"));
        for path in [&root, &beside] {
            fs::create_dir_all(path).map_err(at(path))?;
        }
        Ok(Self {
            root: Root::open(&root.canonicalize().map_err(at(&root))?)?,
            beside,
            known: BTreeMap::new(),
            placeholders: Placeholders::default(),
            removals: Removals::default(),
            listing: None,
            damaged: false,
        })
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Fails when the mirror is lost: its folder is gone, or another one took its place.
    pub fn check(&self) -> Result<(), FilesError> {
        self.root.check()
    }

    #[must_use]
    pub fn placeholders(&self) -> Placeholders {
        self.placeholders.clone()
    }

    /// From now on [`Mirror::is_being_removed`] is told of every name that a cell takes away.
    pub fn removals_are_seen(&mut self) {
        self.removals.are_seen = true;
    }

    /// Somebody is about to take a name away from a folder, or to give it to something else.
    pub fn is_being_removed(&mut self, folder: &Metadata, name: &OsStr) {
        if folder.dev() != self.root.device() {
            return;
        }
        let path = match folder.ino() == self.root.inode() {
            true => RelativePath::new(name.as_bytes()).ok(),
            false => self.removals.path_in(folder.ino(), name),
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

    /// Whether this listing says all that is missing here.
    #[must_use]
    pub fn continues(&self, listing: &Listing) -> bool {
        listing.base.is_none() || listing.base == self.listing
    }

    /// Makes the mirror look like home.
    pub fn sync(&mut self, listing: &Listing) -> Result<(), FilesError> {
        if !self.continues(listing) {
            return Err(FilesError::OutOfStep);
        }
        self.listing = Some(listing.number);
        let changed: BTreeMap<_, _> = listing
            .changed
            .iter()
            .map(|(path, to)| (path, to))
            .collect();
        let from_here: BTreeSet<_> = listing.known.iter().collect();
        let mut gone: BTreeSet<RelativePath> = listing.gone.iter().cloned().collect();
        if listing.base.is_none() {
            let unknown = |path: &&RelativePath| !changed.contains_key(path);
            gone.extend(self.known.keys().filter(unknown).cloned());
        }
        for path in gone.iter().rev() {
            self.remove(path)?;
        }
        for (path, entry) in changed {
            self.bring(path, entry, from_here.contains(path))?;
        }
        Ok(())
    }

    /// Files that the text names and that are not here yet.
    #[must_use]
    pub fn named_in(&self, text: &str) -> Vec<RelativePath> {
        let separators =
            |letter: char| letter.is_whitespace() || "'\"`,;()[]{}=<>|&".contains(letter);
        let mut words: BTreeSet<&[u8]> = BTreeSet::new();
        for word in text.split(separators).chain(text.split(['\'', '"'])) {
            words.insert(word.trim_start_matches("./").as_bytes());
        }
        let is_named = |(path, known): (&RelativePath, &Known)| {
            let waits = matches!(
                known.here,
                Found::File {
                    placeholder: true,
                    ..
                }
            );
            let name = path.as_path().file_name().map_or(&b""[..], OsStr::as_bytes);
            let named = words.contains(path.as_bytes()) || words.contains(name);
            (waits && named).then(|| path.clone())
        };
        self.known.iter().filter_map(is_named).collect()
    }

    /// All that is not here yet, smallest first, until the limit is reached; the flag says that there is more.
    #[must_use]
    pub fn waiting(&self, limit_bytes: u64) -> (Vec<RelativePath>, bool) {
        let size = |(path, known): (&RelativePath, &Known)| match known.here {
            Found::File {
                placeholder: true,
                bytes,
                ..
            } => Some((bytes, path.clone())),
            _ => None,
        };
        let mut waiting: Vec<(u64, RelativePath)> = self.known.iter().filter_map(size).collect();
        waiting.sort_unstable();
        let mut total = 0;
        let count = waiting.len();
        let fitting = waiting.into_iter().take_while(|(bytes, _)| {
            total += bytes;
            total <= limit_bytes
        });
        let fitting: Vec<RelativePath> = fitting.map(|(_, path)| path).collect();
        let more = fitting.len() < count;
        (fitting, more)
    }

    /// The placeholder's file has been filled with what home has now. Other permissions, which a cell gave it before it
    /// read it, stay a difference.
    pub fn filled(&mut self, file: &File, content: &Content) -> Result<(), FilesError> {
        let failed = || at(self.root.path());
        file.set_modified(time(content.modified_ns))
            .map_err(failed())?;
        let metadata = file.metadata().map_err(failed())?;
        self.placeholders.remove(metadata.ino());
        let mut now = self.found_file(&metadata, Some(&content.pieces));
        let of_inode = |known: &&mut Known| compare::inode(&known.here) == Some(metadata.ino());
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

    /// What is different from what the last listing said. An error means that the mirror is lost: nobody knows what
    /// the cell did.
    pub fn scan(&self) -> Result<Scan, FilesError> {
        let walked = walk(&self.root, usize::MAX);
        if let Some(error) = walked.errors.into_iter().next() {
            return Err(error);
        }
        let mut found = BTreeMap::new();
        for (path, metadata) in walked.entries {
            // Of a file the number says nothing: on layered file systems each may have another one.
            if metadata.is_dir() && metadata.dev() != self.root.device() {
                let path = self.root().join(path.as_path());
                return Err(FilesError::OtherFileSystem { path });
            }
            if metadata.is_dir() {
                found.insert(path, found_folder(&metadata));
            } else if metadata.is_symlink() {
                let place = self.root().join(path.as_path());
                let target = fs::read_link(&place).map_err(at(&place))?;
                let target = target.into_os_string().into_vec();
                found.insert(path, Found::Link { target });
            } else if metadata.is_file() {
                found.insert(path, self.found_file(&metadata, None));
            }
        }
        let differences = compare(&self.known, &found);
        let (differences, missing) = self.removals.proven(&self.known, &found, differences);
        Ok(Scan {
            found,
            differences,
            missing,
        })
    }

    /// These differences are on their way home. Of files that were read to find out, these are the bytes; what was
    /// written and is not sent has the bytes of before. All others stay differences.
    pub fn adopt(
        &mut self,
        scan: Scan,
        sent: &[Difference],
        written: &HashMap<RelativePath, Content>,
    ) {
        self.damaged |= !scan.missing.is_empty();
        self.removals.end_cell(&scan.found);
        for difference in sent {
            match difference {
                Difference::Change(baton_protocol::files::Change::Moved { from, path, .. }) => {
                    // Another file may have come to where it was.
                    if !sent.iter().any(|other| other.path() == from) {
                        self.forget(from);
                    }
                    self.adopt_one(&scan, path, None);
                }
                Difference::Change(_) => self.adopt_one(&scan, difference.path(), None),
                Difference::Written { path, .. } => {
                    let pieces = written.get(path).map(|content| content.pieces.as_slice());
                    self.adopt_one(&scan, path, pieces);
                }
            }
        }
        for (path, content) in written {
            if let (Some(now), Some(known)) = (scan.found.get(path), self.known.get_mut(path))
                && !sent.iter().any(|difference| difference.path() == path)
            {
                known.here = with_bytes(now, Some(&content.pieces));
            }
        }
    }

    fn adopt_one(&mut self, scan: &Scan, path: &RelativePath, pieces: Option<&[Piece]>) {
        let Some(now) = scan.found.get(path) else {
            self.forget(path);
            return;
        };
        if let Found::File { inode, .. } = now {
            self.placeholders.moved(*inode, path);
        }
        self.know(path, None, with_bytes(now, pieces));
    }

    fn found_file(&self, metadata: &Metadata, pieces: Option<&[Piece]>) -> Found {
        let modified_ns = modified_ns(metadata);
        Found::File {
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified_ns,
            mode: metadata.mode() & 0o777,
            placeholder: self.placeholders.get(metadata).is_some(),
            unsure: pieces.filter(|_| is_recent(modified_ns)).map(<[_]>::to_vec),
        }
    }

    fn remove(&mut self, path: &RelativePath) -> Result<(), FilesError> {
        let Some(known) = self.forget(path) else {
            return Ok(());
        };
        let place = self.root().join(path.as_path());
        let removed = match known.here {
            Found::Folder { .. } => match fs::remove_dir(&place) {
                // What a cell made in there and could not bring home.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
                removed => removed,
            },
            Found::File { inode, .. } => {
                self.placeholders.remove(inode);
                fs::remove_file(&place)
            }
            Found::Link { .. } => fs::remove_file(&place),
        };
        match removed {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Err(at(&place)(error))
            }
            _ => Ok(()),
        }
    }

    fn bring(
        &mut self,
        path: &RelativePath,
        entry: &Entry,
        from_here: bool,
    ) -> Result<(), FilesError> {
        let place = self.root().join(path.as_path());
        let known = self.known.get_mut(path);
        match entry {
            Entry::Folder { mode } => {
                if !place.is_dir() || place.is_symlink() {
                    self.clear(path, &place)?;
                    fs::create_dir_all(&place).map_err(at(&place))?;
                }
                // Whoever works here must be able to enter it.
                let mode = *mode | 0o700;
                let made = fs::set_permissions(&place, Permissions::from_mode(mode))
                    .and_then(|()| fs::symlink_metadata(&place));
                self.know(path, None, found_folder(&made.map_err(at(&place))?));
            }
            Entry::Link { target } => {
                let home = Some(Base::Link {
                    target: target.clone(),
                });
                let here = Found::Link {
                    target: target.to_vec(),
                };
                if known.is_none_or(|known| known.here != here) {
                    self.clear(path, &place)?;
                    symlink(OsStr::from_bytes(target), &place).map_err(at(&place))?;
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
                self.clear(path, &place)?;
                let metadata = self.make_placeholder(&place, *bytes, *modified_ns, *mode)?;
                if *bytes > 0 {
                    self.placeholders.insert(path.clone(), &metadata);
                }
                let here = self.found_file(&metadata, None);
                self.know(path, home, here);
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

    /// Makes room for something of another kind or version.
    fn clear(&mut self, path: &RelativePath, place: &Path) -> Result<(), FilesError> {
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(at(parent))?;
        }
        self.remove(path)?;
        let removed = match fs::symlink_metadata(place) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(place),
            Ok(_) => fs::remove_file(place),
            Err(_) => Ok(()),
        };
        removed.map_err(at(place))
    }

    fn make_placeholder(
        &self,
        place: &Path,
        bytes: u64,
        modified_ns: i64,
        mode: u32,
    ) -> Result<Metadata, FilesError> {
        let waiting = self.beside.join("placeholder");
        let made = || {
            let file = File::create(&waiting)?;
            file.set_len(bytes)?;
            file.set_modified(time(modified_ns))?;
            file.set_permissions(Permissions::from_mode(mode & 0o777))?;
            fs::rename(&waiting, place)?;
            file.metadata()
        };
        made().map_err(at(place))
    }
}

fn found_folder(metadata: &Metadata) -> Found {
    Found::Folder {
        inode: metadata.ino(),
        mode: metadata.mode() & 0o777,
    }
}

fn with_bytes(now: &Found, pieces: Option<&[Piece]>) -> Found {
    let mut here = now.clone();
    if let Found::File {
        modified_ns,
        unsure,
        ..
    } = &mut here
    {
        *unsure = pieces
            .filter(|_| is_recent(*modified_ns))
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
