//! Files in memory that cannot be changed after they have been handed over.

mod sys;

use crate::StateError;
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

const NAME: &str = "baton-state";

/// The path under which the operating system lists mappings of these files.
pub(crate) const PATH: &str = "/memfd:baton-state";

pub(crate) fn create() -> Result<File, StateError> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(NAME, flags).map_err(|error| no_room(error.into()))?;
    Ok(File::from(file))
}

/// Gives the file the size of what will be written into it.
///
/// A file in memory has pages of 4 KiB, unless the administrator changed that (`shmem_enabled`),
/// and allocating those takes longer than filling them. So this asks for large pages. If none are
/// free, or this is `cancelled`, writing allocates small ones.
pub(crate) fn make_room(
    file: &File,
    bytes: u64,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), StateError> {
    file.set_len(bytes).map_err(no_room)?;
    if let Err(error) = sys::give_large_pages(file, bytes, cancelled) {
        tracing::debug!(%error, "No large pages for a file in memory: {error}");
    }
    Ok(())
}

pub(crate) fn seal(file: File) -> Result<OwnedFd, StateError> {
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals()))
        .map_err(|error| StateError::Assemble(error.into()))?;
    Ok(file.into())
}

/// Whether a file from another process can no longer be changed or truncated.
pub(crate) fn is_sealed(file: impl AsFd) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|found| SealFlag::from_bits_truncate(found).contains(seals()))
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL
}

/// The error for a file in memory that cannot be written.
pub(crate) fn no_room(error: io::Error) -> StateError {
    match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StateError::MemoryFull
        }
        _ => StateError::Assemble(error),
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
                matches!(no_room(error.into()), StateError::MemoryFull),
                "{error}"
            );
        }
        assert!(matches!(
            no_room(Errno::EIO.into()),
            StateError::Assemble(_)
        ));
    }
}
