//! Files of a mirror that have no bytes yet, by inode: their names may change while nobody has read them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_protocol::files::RelativePath;

use crate::folder::{Handle, Status};

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
    device: u64,
    modified_ns: i64,
    /// Somebody tried to open it with the wish that it be emptied.
    emptied: bool,
}

impl Placeholders {
    /// What has to be fetched before this file is read. A file that a cell has emptied is nobody's placeholder.
    #[must_use]
    pub fn get(&self, status: &Status) -> Option<Placeholder> {
        let mut by_inode = self.lock();
        let placeholder = by_inode.get(&status.inode)?;
        // A session may name any file of this machine.
        if status.device != placeholder.device {
            return None;
        }
        if placeholder.is(status) {
            return Some(placeholder.clone());
        }
        by_inode.remove(&status.inode);
        None
    }

    /// The file, to be filled with what is at home, if it is a placeholder. Its name is not looked up again.
    pub fn open(&self, handle: &Handle) -> io::Result<Option<(File, Placeholder)>> {
        let status = handle.status()?;
        match self.get(&status) {
            Some(placeholder) => Ok(Some((open_anyway(handle, &status)?, placeholder))),
            None => Ok(None),
        }
    }

    /// Somebody opens the file to write it from the beginning. Whether that succeeds is seen the next time.
    pub fn emptied(&self, inode: u64) {
        if let Some(placeholder) = self.lock().get_mut(&inode) {
            placeholder.emptied = true;
        }
    }

    pub(super) fn insert(&self, path: RelativePath, status: &Status) {
        let placeholder = Placeholder {
            path,
            device: status.device,
            bytes: status.bytes,
            modified_ns: status.modified_ns,
            emptied: false,
        };
        self.lock().insert(status.inode, placeholder);
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
    fn is(&self, status: &Status) -> bool {
        let untouched = status.modified_ns == self.modified_ns;
        status.bytes == self.bytes && status.blocks == 0 && (untouched || !self.emptied)
    }
}

/// To read and write, also what its owner may not write.
fn open_anyway(handle: &Handle, status: &Status) -> io::Result<File> {
    match handle.open() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            handle.set_mode(status.mode | 0o600)?;
            let file = handle.open();
            handle.set_mode(status.mode)?;
            file
        }
        opened => opened,
    }
}
