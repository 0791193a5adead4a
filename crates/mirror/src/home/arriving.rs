//! What a cell made, complete and waiting to be put in place.

use crate::{
    content::time,
    folder::Below,
    links::stays_inside,
    places::{attempt, describe_file},
};
use baton_protocol::files::{Content, RelativePath};
use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
};

/// Something that will be put in place.
pub(super) enum Arriving {
    Moved {
        from: RelativePath,
        /// Where in the trash it waits.
        taken: Below,
        mode: u32,
    },
    Written(Below, Content),
    Link(Vec<u8>),
}

impl Arriving {
    /// Where in the trash it was, if the cell only renamed it.
    pub(super) fn renamed(&self) -> Option<Below> {
        match self {
            Self::Moved { taken, .. } => Some(taken.clone()),
            Self::Written(..) | Self::Link(_) => None,
        }
    }

    /// Completes it, and returns where it waits.
    pub(super) fn make_ready(&self, path: &RelativePath, waiting: Below) -> io::Result<Below> {
        match self {
            Self::Moved { taken, mode, .. } => {
                let place = taken.place()?;
                match place.status()?.is_link() {
                    // Check it again: something else may have just changed it.
                    true => check_link(path, &place.read_link()?.into_vec())?,
                    false => attempt("permissions", place.set_mode(mode & 0o777).map(drop)),
                }
                Ok(taken.clone())
            }
            Self::Written(file, content) => {
                let place = file.place()?;
                let handle = place.handle()?;
                let open = handle.open()?;
                describe_file(&open, time(content.modified_ns), content.mode & 0o777);
                Ok(file.clone())
            }
            Self::Link(target) => {
                check_link(path, target)?;
                waiting.place()?.make_link(OsStr::from_bytes(target))?;
                Ok(waiting)
            }
        }
    }
}

/// Checks a link that will have this path.
pub(super) fn check_link(path: &RelativePath, target: &[u8]) -> io::Result<()> {
    match stays_inside(path, target) {
        true => Ok(()),
        false => Err(io::Error::other(
            "it is a link that may lead out of the folder",
        )),
    }
}
