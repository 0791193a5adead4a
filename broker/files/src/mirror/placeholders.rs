//! Files of a mirror that have no bytes yet, by inode: their names may change while nobody has read them.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_protocol::files::RelativePath;

use crate::FilesError;
use crate::content::modified_ns;
use crate::errors::at;

/// Shared by the mirror and by whoever watches what a session opens.
#[derive(Debug, Clone, Default)]
pub struct Placeholders {
    by_inode: Arc<Mutex<HashMap<u64, Placeholder>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placeholder {
    /// At home.
    pub path: RelativePath,
    pub bytes: u64,
    modified_ns: i64,
    /// Somebody tried to open it with the wish that it be emptied.
    emptied: bool,
}

impl Placeholders {
    /// What has to be fetched before this file is read. A file that a cell has emptied is nobody's placeholder.
    #[must_use]
    pub fn get(&self, metadata: &Metadata) -> Option<Placeholder> {
        let mut by_inode = self.lock();
        let placeholder = by_inode.get(&metadata.ino())?;
        if placeholder.is(metadata) {
            return Some(placeholder.clone());
        }
        by_inode.remove(&metadata.ino());
        None
    }

    /// The file, to be filled with what is at home, if it is a placeholder.
    pub fn open(&self, place: &Path) -> Result<Option<(File, Placeholder)>, FilesError> {
        let metadata = fs::metadata(place).map_err(at(place))?;
        match self.get(&metadata) {
            Some(placeholder) => Ok(Some((open_anyway(place, &metadata)?, placeholder))),
            None => Ok(None),
        }
    }

    /// Somebody opens the file to write it from the beginning. Whether that succeeds is seen the next time.
    pub fn emptied(&self, inode: u64) {
        if let Some(placeholder) = self.lock().get_mut(&inode) {
            placeholder.emptied = true;
        }
    }

    pub(super) fn insert(&self, path: RelativePath, metadata: &Metadata) {
        let placeholder = Placeholder {
            path,
            bytes: metadata.len(),
            modified_ns: modified_ns(metadata),
            emptied: false,
        };
        self.lock().insert(metadata.ino(), placeholder);
    }

    /// It has this name at home, too.
    pub(super) fn moved(&self, inode: u64, path: &RelativePath) {
        if let Some(placeholder) = self.lock().get_mut(&inode) {
            placeholder.path = path.clone();
        }
    }

    pub(super) fn remove(&self, inode: u64) {
        self.lock().remove(&inode);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Placeholder>> {
        self.by_inode.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Placeholder {
    /// Its time alone may have changed (`touch`); a file that was emptied and made large again has another time, too.
    fn is(&self, metadata: &Metadata) -> bool {
        let untouched = modified_ns(metadata) == self.modified_ns;
        metadata.len() == self.bytes && metadata.blocks() == 0 && (untouched || !self.emptied)
    }
}

/// To read and write, also what its owner may not write.
fn open_anyway(place: &Path, metadata: &Metadata) -> Result<File, FilesError> {
    let open = || File::options().read(true).write(true).open(place);
    let opened = match open() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let allow = |mode| fs::set_permissions(place, Permissions::from_mode(mode));
            allow(metadata.mode() | 0o600).and_then(|()| {
                let file = open();
                allow(metadata.mode())?;
                file
            })
        }
        opened => opened,
    };
    opened.map_err(at(place))
}
