//! Host memory for what leaves the GPU.

use super::{
    driver,
    host::{madvise, mmap, munmap},
};
use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
};

/// Pages are cleared in steps of this many bytes, because threads that map memory wait until a step is done.
const STEP_BYTES: usize = 4 << 20;

/// Host memory at a fixed place, for memory that leaves the GPU. Forked children do not get it, because Linux
/// copies pinned pages at each fork.
#[derive(Debug)]
pub(in super::super) struct HostMemory {
    address: usize,
    bytes: usize,
    is_pinned: bool,
}

impl HostMemory {
    /// Maps all its pages, which takes most of the time but needs neither the driver nor a context.
    pub(in super::super) fn new(bytes: u64) -> Option<Self> {
        Self::new_while(bytes, || true)
    }

    /// The same, but gives up and returns `None` as soon as `goes_on` returns `false`.
    pub(in super::super) fn new_while(bytes: u64, goes_on: impl Fn() -> bool) -> Option<Self> {
        const READ_WRITE: c_int = 1 | 2;
        const PRIVATE_ANONYMOUS: c_int = 0x2 | 0x20;
        const NOT_IN_CHILDREN: c_int = 10;
        const HUGE_PAGES: c_int = 14;
        let bytes = usize::try_from(bytes).ok()?;
        // SAFETY: new pages at an address of the kernel's choice.
        let address = unsafe { mmap(null_mut(), bytes, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0) };
        if address as isize == -1 {
            return None;
        }
        let memory = Self {
            address: address as usize,
            bytes,
            is_pinned: false,
        };
        // SAFETY: these pages are new.
        unsafe {
            madvise(address, bytes, NOT_IN_CHILDREN);
            madvise(address, bytes, HUGE_PAGES);
        }
        let steps = (0..bytes).step_by(STEP_BYTES);
        let mut steps = steps.map(|from| (from, STEP_BYTES.min(bytes - from)));
        steps
            .all(|(from, bytes)| goes_on() && memory.populate(from, bytes))
            .then_some(memory)
    }

    /// Returns `false` if the machine has no more pages.
    fn populate(&self, from: usize, bytes: usize) -> bool {
        const POPULATE_WRITE: c_int = 23;
        const INVALID: i32 = 22;
        let address = (self.address + from) as *mut c_void;
        // SAFETY: pages of this value's own; their contents stay as they are.
        let populated = unsafe { madvise(address, bytes, POPULATE_WRITE) } == 0;
        if populated {
            return true;
        }
        // Linux before 5.14 does not know this advice.
        let is_unknown = std::io::Error::last_os_error().raw_os_error() == Some(INVALID);
        if is_unknown {
            self.touch(from, bytes);
        }
        is_unknown
    }

    /// Maps pages by writing to each of them. They must not have any contents yet.
    fn touch(&self, from: usize, bytes: usize) {
        const PAGE: usize = 4096;
        for at in (from..from + bytes).step_by(PAGE) {
            // SAFETY: pages of this value's own.
            unsafe { ((self.address + at) as *mut u8).write_volatile(0) };
        }
    }

    /// Pins the pages, so that the GPU copies at full speed. A context must be current. Returns `false` if the
    /// driver cannot pin them; copies are slow then.
    pub(in super::super) fn pin(&mut self) -> bool {
        self.is_pinned =
            self.is_pinned || driver::host_register(self.address, self.bytes) == driver::SUCCESS;
        self.is_pinned
    }

    pub(in super::super) fn address(&self) -> usize {
        self.address
    }

    pub(in super::super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.is_pinned {
            driver::beside_captures(|| driver::host_unregister(self.address));
        }
        // SAFETY: these pages are this value's own.
        unsafe { munmap(self.address as *mut c_void, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("it is Linux");
        let mut words = statm.split_whitespace().skip(1);
        words
            .next()
            .and_then(|word| word.parse().ok())
            .expect("it is a number")
    }

    #[test]
    fn all_pages_come_where_the_system_knows_no_advice() {
        let (count, size) = (256, 64 << 10);
        let before = resident_pages();
        // Small ones, which are never huge pages.
        let make = |_| HostMemory::new_while(size, || false);
        assert!((0..count).map(make).all(|memory| memory.is_none()));
        assert!(resident_pages() < before + count);
        let bytes = count * size as usize;
        let memory = HostMemory::new(bytes as u64).expect("there is room");
        memory.touch(0, bytes);
        assert!(resident_pages() >= before + bytes / 4096);
    }
}
