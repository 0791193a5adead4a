//! Why an environment could not be built.

use crate::FolderError;
use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("The disk of {} is full\nhint: make room there, or name another folder", path.display())]
    DiskFull { path: PathBuf },
    #[error("uv could not {what}: {said}{}", hint(said))]
    Step { what: &'static str, said: String },
    #[error("The environment could not be built: {0}")]
    Io(#[from] io::Error),
    #[error("{} does not have Baton's Python package\nhint: install it there, or name another Python", python.display())]
    NoBaton { python: PathBuf },
    #[error("{0}")]
    Runner(String),
}

fn hint(said: &str) -> &'static str {
    let offline = [
        "dns error",
        "Connection refused",
        "Failed to fetch",
        "Could not connect",
    ];
    match offline.iter().any(|sign| said.contains(sign)) {
        true => {
            "\nhint: a build needs the package index: let it reach the network, or give it an index with UV_DEFAULT_INDEX"
        }
        false => "\nhint: correct the lock",
    }
}
