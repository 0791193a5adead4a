//! Large pages for files in memory.
#![allow(unsafe_code)]

use nix::{
    fcntl::{FallocateFlags, fallocate},
    libc,
};
use std::{fs::File, io, ops::Range, os::fd::AsRawFd, ptr};

const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Since Linux 6.1, see madvise(2).
const MADV_COLLAPSE: libc::c_int = 25;

/// The number of bytes to request at once.
const STEP_BYTES: usize = 64 << 20;

/// Allocates large pages for the first `bytes` of the file, which must exist, as far as whole ones fit.
///
/// The operating system collapses only pages that exist, so a small page is allocated first in each place.
pub(super) fn give_large_pages(
    file: &File,
    bytes: u64,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<()> {
    let end = bytes - bytes % LARGE_PAGE_BYTES as u64;
    for start in (0..end).step_by(STEP_BYTES) {
        if cancelled() {
            return Ok(());
        }
        let step = start..end.min(start + STEP_BYTES as u64);
        for place in step.clone().step_by(LARGE_PAGE_BYTES) {
            fallocate(file, FallocateFlags::empty(), place.cast_signed(), 1)?;
        }
        Mapping::new(file, &step)?.collapse()?;
    }
    Ok(())
}

/// A mapping of part of a file, aligned for large pages.
struct Mapping {
    /// The start of the reserved range.
    reserved: *mut libc::c_void,
    file: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    fn new(file: &File, part: &Range<u64>) -> io::Result<Self> {
        let bytes =
            usize::try_from(part.end - part.start).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the operating system chooses unused addresses.
        let reserved = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes + LARGE_PAGE_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut mapping = Self {
            reserved,
            file: reserved.map_addr(|address| address.next_multiple_of(LARGE_PAGE_BYTES)),
            bytes,
        };
        // SAFETY: these addresses are part of the range reserved above, and nothing else is mapped there.
        mapping.file = unsafe {
            libc::mmap(
                mapping.file,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                part.start.cast_signed(),
            )
        };
        match mapping.file == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(mapping),
        }
    }

    fn collapse(&self) -> io::Result<()> {
        // SAFETY: advice about mapped memory, which changes no byte of it.
        match unsafe { libc::madvise(self.file, self.bytes, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: reserved by this mapping, and used nowhere else.
        unsafe { libc::munmap(self.reserved, self.bytes + LARGE_PAGE_BYTES) };
    }
}
