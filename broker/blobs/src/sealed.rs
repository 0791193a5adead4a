//! Files in memory that nobody can change once they are handed over.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

use crate::BlobError;

const NAME: &str = "baton-state";

/// How the system calls the files of this module where they are mapped.
pub(crate) const PATH: &str = "/memfd:baton-state";

pub(crate) fn create() -> Result<File, BlobError> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(NAME, flags).map_err(|error| no_room(error.into()))?;
    Ok(File::from(file))
}

pub(crate) fn seal(file: File) -> Result<OwnedFd, BlobError> {
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals()))
        .map_err(|error| BlobError::Assemble(error.into()))?;
    Ok(file.into())
}

/// Whether a file that somebody else made can neither be changed nor cut any more.
pub(crate) fn is_sealed(file: impl AsFd) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|found| SealFlag::from_bits_truncate(found).contains(seals()))
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL
}

/// What it means that a file in memory cannot be written.
pub(crate) fn no_room(error: io::Error) -> BlobError {
    match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            BlobError::MemoryFull
        }
        _ => BlobError::Assemble(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn full_memory_is_not_just_any_failure() {
        for error in [Errno::ENOSPC, Errno::ENOMEM] {
            assert!(
                matches!(no_room(error.into()), BlobError::MemoryFull),
                "{error}"
            );
        }
        assert!(matches!(no_room(Errno::EIO.into()), BlobError::Assemble(_)));
    }
}
