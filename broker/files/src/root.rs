//! A folder that stays the same one: another that takes its path is told from it.
//!
//! **Invariant:** the open handle keeps the folder's number from being given to another one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::FilesError;
use crate::errors::at;

#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    handle: File,
    device: u64,
    inode: u64,
}

impl Root {
    pub fn open(path: &Path) -> Result<Self, FilesError> {
        let handle = File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(path)
            .map_err(at(path))?;
        let metadata = handle.metadata().map_err(at(path))?;
        Ok(Self {
            path: path.to_owned(),
            handle,
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of its file system.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.device
    }

    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Fails when the path no longer leads to this folder.
    pub fn check(&self) -> Result<(), FilesError> {
        let is_same =
            |metadata: &fs::Metadata| (metadata.dev(), metadata.ino()) == (self.device, self.inode);
        match fs::metadata(&self.path) {
            Ok(metadata) if is_same(&metadata) => {}
            Ok(_) => return Err(self.replaced()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.replaced()),
            Err(error) => return Err(at(&self.path)(error)),
        }
        // A file system that broke may still answer what it remembers of the path.
        self.handle.metadata().map_err(at(&self.path)).map(drop)
    }

    fn replaced(&self) -> FilesError {
        FilesError::FolderGone {
            path: self.path.clone(),
        }
    }
}
