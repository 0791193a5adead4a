//! What a cell made, complete and waiting for its place.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use baton_protocol::files::{Content, RelativePath};

use crate::content::time;
use crate::links::stays_inside;

/// What takes a place.
pub(super) enum Arriving {
    Moved(PathBuf, u32),
    Written(PathBuf, Content),
    Link(Vec<u8>),
}

impl Arriving {
    /// The path at which it waits, complete.
    pub(super) fn make_ready(self, path: &RelativePath, waiting: &Path) -> io::Result<PathBuf> {
        match self {
            Self::Moved(file, mode) => {
                if !fs::symlink_metadata(&file)?.is_symlink() {
                    fs::set_permissions(&file, Permissions::from_mode(mode & 0o777))?;
                }
                Ok(file)
            }
            Self::Written(file, content) => {
                File::options()
                    .write(true)
                    .open(&file)?
                    .set_modified(time(content.modified_ns))?;
                fs::set_permissions(&file, Permissions::from_mode(content.mode & 0o777))?;
                Ok(file)
            }
            Self::Link(target) if stays_inside(path, &target) => {
                symlink(OsStr::from_bytes(&target), waiting)?;
                Ok(waiting.to_owned())
            }
            Self::Link(_) => Err(io::Error::other(
                "it is a link that leads out of the notebook's folder",
            )),
        }
    }
}
