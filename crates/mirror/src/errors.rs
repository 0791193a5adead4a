//! Errors about files.

use baton_chunks::{Severity, StateError};
use baton_protocol::DecodeError;
use baton_transport::LinkError;
use std::{
    io,
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    #[error("Failed to use {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("The folder {} is gone or was replaced by another one", path.display())]
    FolderGone { path: PathBuf },
    #[error("{} is no longer on the file system of its folder", path.display())]
    OtherFileSystem { path: PathBuf },
    #[error("The received pieces of a file do not fit together")]
    Pieces,
    #[error("The message about files is larger than any that Baton sends")]
    TooLarge,
    #[error("The listing continues an earlier one that this machine does not have")]
    OutOfStep,
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("The work on files was aborted")]
    Join(#[from] tokio::task::JoinError),
}

impl FilesError {
    /// What another attempt at the same transfer would lead to.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::Link(error) => error.severity(),
            Self::State(error) => error.severity(),
            _ => Severity::Lasting,
        }
    }
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> FilesError {
    let path = path.to_owned();
    |source| FilesError::Io { path, source }
}
