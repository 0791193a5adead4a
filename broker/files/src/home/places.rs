//! Places in the notebook's folder: what is there, and moving files into them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::walk::STAGING;

pub(crate) fn present(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Beside a file whose name is taken: `data (from the GPU).csv`.
pub(super) fn free_name(taken: &Path) -> io::Result<PathBuf> {
    let (stem, ending) = (taken.file_stem(), taken.extension());
    for number in 1.. {
        let mut name = stem.map_or_else(OsString::new, OsStr::to_owned);
        match number {
            1 => name.push(" (from the GPU)"),
            _ => name.push(format!(" (from the GPU {number})")),
        }
        if let Some(ending) = ending {
            name.push(".");
            name.push(ending);
        }
        let path = taken.with_file_name(name);
        if present(&path)?.is_none() {
            return Ok(path);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The place it had is free afterwards, also where the other one is on another file system.
pub(crate) fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy(from, to)?;
            fs::remove_file(from)
        }
        renamed => renamed,
    }
}

/// A folder inside the notebook's may be another file system.
pub(super) fn rename_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => copy(from, to),
        renamed => renamed,
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let near = to.with_file_name(format!("{STAGING}{}", uuid::Uuid::new_v4().simple()));
    let metadata = fs::symlink_metadata(from)?;
    let copied = match metadata.is_symlink() {
        true => symlink(fs::read_link(from)?, &near),
        false => fs::copy(from, &near)
            .and_then(|_| File::open(&near)?.set_modified(metadata.modified()?)),
    };
    copied
        .and_then(|()| fs::rename(&near, to))
        .inspect_err(|_| drop(fs::remove_file(&near)))
}
