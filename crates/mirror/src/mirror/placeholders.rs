//! Files of a mirror that have no bytes yet. They are found by inode, because they may be renamed
//! before they are read.

use crate::{
    FilesError,
    content::time,
    errors::at,
    folder::{Handle, Status},
};
use baton_protocol::files::RelativePath;
use std::{
    borrow::Borrow,
    collections::HashMap,
    fs::File,
    io,
    path::Path,
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
    pub(super) modified_ns: i64,
    device: u64,
    /// As many as the file system counts for a file of this size without bytes.
    blocks: u64,
    /// A process tried to open the file in order to empty it.
    emptied: bool,
    /// How many [`Filling`]s write to it. A fill that was aborted may end after the next one has begun.
    fillings: usize,
}

impl Placeholders {
    /// Returns what to fetch before this file is read. A file that a cell has emptied is no longer
    /// a placeholder. `again` looks at the file a second time: a fill that failed may have removed
    /// its bytes since the first look.
    #[must_use]
    pub fn find(
        &self,
        status: &Status,
        again: impl FnOnce() -> io::Result<Status>,
    ) -> Option<Placeholder> {
        let by_inode = self.lock();
        let placeholder = by_inode.get(&status.inode)?;
        // A session may name any file on this machine.
        let is_it = |status: &Status| {
            status.device == placeholder.device && placeholder.waits_for_bytes(status)
        };
        let waits = is_it(status) || again().is_ok_and(|now| now.is_same(status) && is_it(&now));
        waits.then(|| placeholder.clone())
    }

    /// Opens the file if it is a placeholder. Its name is not looked up again.
    pub fn open(&self, handle: &Handle) -> io::Result<Option<(File, Placeholder)>> {
        let status = handle.status()?;
        match self.find(&status, || handle.status()) {
            Some(placeholder) => Ok(Some((open_anyway(handle, &status)?, placeholder))),
            None => Ok(None),
        }
    }

    /// Begins to fill a file from home; none if it is no longer a placeholder.
    pub fn fill(&self, file: File) -> Result<Option<Filling>, FilesError> {
        let mut by_inode = self.lock();
        let metadata = file.metadata().map_err(at(Path::new("a file to fill")))?;
        let status = Status::from(&metadata);
        let placeholder = by_inode.get_mut(&status.inode);
        let Some(placeholder) = placeholder.filter(|found| found.waits_for_bytes(&status)) else {
            return Ok(None);
        };
        placeholder.fillings += 1;
        drop(by_inode);
        Ok(Some(Filling {
            file,
            inode: status.inode,
            placeholders: self.clone(),
        }))
    }

    /// A process is about to open this file in order to empty it. The next look at the file shows
    /// whether that succeeded. Returns `false` while the file is being filled: then the process has
    /// to wait, because the fill would write over its bytes.
    #[must_use]
    pub fn may_be_emptied(&self, status: &Status) -> bool {
        let mut by_inode = self.lock();
        let placeholder = by_inode.get_mut(&status.inode);
        let Some(placeholder) = placeholder.filter(|found| found.device == status.device) else {
            return true;
        };
        let may = placeholder.fillings == 0;
        placeholder.emptied |= may;
        may
    }

    pub(super) fn insert(&self, path: RelativePath, status: &Status) -> Placeholder {
        let placeholder = Placeholder {
            path,
            bytes: status.bytes,
            modified_ns: status.modified_ns,
            device: status.device,
            blocks: status.blocks,
            emptied: false,
            fillings: 0,
        };
        self.lock().insert(status.inode, placeholder.clone());
        placeholder
    }

    /// Records the file's new name at home.
    pub(super) fn moved(&self, inode: u64, path: &RelativePath) {
        if let Some(placeholder) = self.lock().get_mut(&inode) {
            placeholder.path = path.clone();
        }
    }

    /// The file is gone, or has bytes.
    pub(super) fn forget(&self, inode: u64) {
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
    /// Whether the file lacks bytes. No sign is certain: a process can change or restore the file's
    /// time (`touch`), an attempt to empty it may have failed, and some file systems count blocks
    /// late, or count some for a file without bytes. So two of three have to say so.
    fn waits_for_bytes(&self, status: &Status) -> bool {
        let signs = [
            status.modified_ns == self.modified_ns,
            status.blocks == self.blocks,
            !self.emptied,
        ];
        let agree = signs.into_iter().filter(|sign| *sign).count() >= 2;
        self.fillings > 0 || status.bytes == self.bytes && agree
    }
}

/// A placeholder's file while its bytes arrive. Until [`Mirror::filled`](super::Mirror::filled), it
/// counts as a placeholder. If this is dropped before, the file loses the bytes that have arrived.
#[derive(Debug)]
pub struct Filling {
    pub(super) file: File,
    inode: u64,
    placeholders: Placeholders,
}

impl Borrow<File> for Filling {
    fn borrow(&self) -> &File {
        &self.file
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let mut by_inode = self.placeholders.lock();
        // There is none if the file was filled, or is no longer in the mirror.
        let Some(placeholder) = by_inode.get_mut(&self.inode) else {
            return;
        };
        if placeholder.fillings == 1
            && let Err(error) = make_hole(&self.file, placeholder.bytes, placeholder.modified_ns)
        {
            // It stays a file that is being filled, and the next fill replaces its bytes.
            tracing::warn!(%error, "A file of a mirror that was only partly fetched could not be emptied");
            return;
        }
        placeholder.fillings -= 1;
    }
}

/// Gives the file this size and time, and no bytes.
pub(super) fn make_hole(file: &File, bytes: u64, modified_ns: i64) -> io::Result<()> {
    file.set_len(0)?;
    file.set_len(bytes)?;
    file.set_modified(time(modified_ns))
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
