//! A received file, mapped as a session would.
#![allow(unsafe_code)]

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::{ffi::c_void, num::NonZeroUsize, os::fd::AsFd, ptr::NonNull};

pub(crate) struct Mapped {
    start: NonNull<c_void>,
    bytes: usize,
}

impl Mapped {
    pub(crate) fn new(file: impl AsFd, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap();
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let size = NonZeroUsize::new(bytes).unwrap();
        // SAFETY: a new private mapping; the file is sealed and has this length.
        let start =
            unsafe { mmap(None, size, protection, MapFlags::MAP_PRIVATE, file, 0) }.unwrap();
        Self { start, bytes }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping belongs to this value and lives as long as it does.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}
