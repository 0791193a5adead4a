//! A folder that can be distinguished from any other folder that later has the same path.
//!
//! **Invariant:** everything is read and written below the open folder, never below another folder
//! that now has its path. While it is open, its inode number is not given to another one.

use crate::{
    FilesError,
    errors::at,
    folder::{Folder, Status},
};
use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Path, PathBuf},
};

/// Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct Root {
    path: PathBuf,
    folder: Folder,
    status: Status,
}

impl Root {
    pub fn open(path: &Path) -> Result<Self, FilesError> {
        let folder = Folder::open(path).map_err(at(path))?;
        let status = folder.status().map_err(at(path))?;
        Ok(Self {
            path: path.to_owned(),
            folder,
            status,
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// A path that leads to this folder, whatever now has its own path. Only this process can use it, as long as it
    /// holds the folder open.
    #[must_use]
    pub fn path_of_descriptor(&self) -> PathBuf {
        let descriptor = self.folder.as_fd().as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{descriptor}"))
    }

    /// Whether this information is about this folder.
    #[must_use]
    pub fn is(&self, status: &Status) -> bool {
        self.status.is_same(status)
    }

    /// The number of the folder's file system.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.status.device
    }

    #[must_use]
    pub fn inode(&self) -> u64 {
        self.status.inode
    }

    /// The user id of the folder's owner.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.status.owner
    }

    /// Fails if the path no longer leads to this folder.
    pub fn check(&self) -> Result<(), FilesError> {
        match fs::metadata(&self.path) {
            Ok(metadata) if self.status.is_same(&Status::from(&metadata)) => {}
            Ok(_) => return Err(self.replaced()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.replaced()),
            Err(error) => return Err(at(&self.path)(error)),
        }
        // A broken file system may still answer from its cache.
        self.folder.status().map_err(at(&self.path)).map(drop)
    }

    fn replaced(&self) -> FilesError {
        FilesError::FolderGone {
            path: self.path.clone(),
        }
    }
}
