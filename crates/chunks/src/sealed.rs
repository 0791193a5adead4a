//! Files in memory that nobody can change once they are handed over.

mod sys;

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

/// Makes the file as long as what will be written into it.
///
/// A file in memory has pages of 4 KiB, unless the administrator says otherwise (`shmem_enabled`), and those take longer
/// to get than to fill. Where the system has no large ones to give, small ones come with the writing, also
/// once it is `cancelled`.
pub(crate) fn make_room(
    file: &File,
    bytes: u64,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), BlobError> {
    file.set_len(bytes).map_err(no_room)?;
    if let Err(error) = sys::give_large_pages(file, bytes, cancelled) {
        tracing::debug!(%error, "No large pages for a file in memory: {error}");
    }
    Ok(())
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
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::FileExt;

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn room_is_empty_and_can_be_filled_and_sealed() {
        for bytes in [0, 100, 3 << 20, (200 << 20) + 100] {
            let file = create().unwrap();
            make_room(&file, bytes, &|| false).unwrap();
            assert_eq!(file.metadata().unwrap().len(), bytes);
            let mut found = vec![1; usize::try_from(bytes).unwrap()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found.iter().all(|byte| *byte == 0), "{bytes}");
            found.fill(7);
            file.write_all_at(&found, 0).unwrap();
            assert!(is_sealed(seal(file).unwrap()), "{bytes}");
        }
    }

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
