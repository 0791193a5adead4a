//! What the worker needs of the interposer: the library itself, and how to communicate with it.
//!
//! The library (`library/`) is loaded into every process of a session before all others, by `LD_PRELOAD`. It stands
//! between the session and the CUDA driver: work that the session submits waits at a gate until the session has a
//! lease, and memory that the session allocates can leave the GPU and return to the same addresses.
//!
//! **Invariant:** nothing links the library; it is embedded as bytes in the one program that is installed.

pub mod wire;

#[cfg(test)]
mod library;

use std::{
    io,
    path::{Path, PathBuf},
};

/// Writes the library into a session's private folder.
pub fn install(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("interposer.so");
    std::fs::write(
        &path,
        include_bytes!(concat!(env!("OUT_DIR"), "/interposer.so")),
    )?;
    Ok(path)
}
