//! Files of a mirror that have no bytes yet. They are found by inode, because they may be renamed
//! before they are read.

use crate::folder::{Handle, Status};
use baton_protocol::files::RelativePath;
use std::{
    collections::HashMap,
    fs::File,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Shared by the mirror and the task that watches what a session opens.
#[derive(Debug, Clone, Default)]
pub struct Placeholders {
    by_inode: Arc<Mutex<HashMap<u64, Placeholder>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placeholder {
    /// The path at home.
    pub path: RelativePath,
    pub bytes: u64,
    device: u64,
    modified_ns: i64,
    /// A process tried to open the file in order to empty it.
    emptied: bool,
}

impl Placeholders {
    /// Returns what to fetch before this file is read. A file that a cell has emptied is no longer
    /// a placeholder.
    #[must_use]
    pub fn get(&self, status: &Status) -> Option<Placeholder> {
        let mut by_inode = self.lock();
        let placeholder = by_inode.get(&status.inode)?;
        // A session may name any file on this machine.
        if status.device != placeholder.device {
            return None;
        }
        if placeholder.is(status) {
            return Some(placeholder.clone());
        }
        by_inode.remove(&status.inode);
        None
    }

    /// Opens the file, to fill it from home, if it is a placeholder. Its name is not looked up again.
    pub fn open(&self, handle: &Handle) -> io::Result<Option<(File, Placeholder)>> {
        let status = handle.status()?;
        match self.get(&status) {
            Some(placeholder) => Ok(Some((open_anyway(handle, &status)?, placeholder))),
            None => Ok(None),
        }
    }

    /// A process opens the file to empty it. The next look at the file shows whether that succeeded.
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

    /// Records the file's new name at home.
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
    /// Whether the file has no bytes yet. Its time alone may have changed (`touch`). A file that
    /// was emptied and extended again has another time, too.
    fn is(&self, status: &Status) -> bool {
        let untouched = status.modified_ns == self.modified_ns;
        status.bytes == self.bytes && status.blocks == 0 && (untouched || !self.emptied)
    }
}

/// Opens a file to read and write, even if its owner may not write it.
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
