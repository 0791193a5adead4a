//! The functions of the C library that the interposer calls.

use super::driver;
use std::{
    ffi::{CString, c_char, c_int, c_void},
    ptr::null_mut,
};

pub(super) const RTLD_LAZY: c_int = 1;
pub(super) const RTLD_NOLOAD: c_int = 4;
pub(super) const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;

unsafe extern "C" {
    pub(super) fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    pub(super) fn dlvsym(
        handle: *mut c_void,
        name: *const c_char,
        version: *const c_char,
    ) -> *mut c_void;
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        access: c_int,
        flags: c_int,
        file: c_int,
        from: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    fn close(file: c_int) -> c_int;
    fn eventfd(count: u32, flags: c_int) -> c_int;
    fn read(file: c_int, to: *mut c_void, bytes: usize) -> isize;
    fn write(file: c_int, from: *const c_void, bytes: usize) -> isize;
    fn setpriority(whose: c_int, number: u32, priority: c_int) -> c_int;
    fn setenv(name: *const c_char, value: *const c_char, overwrites: c_int) -> c_int;
    fn sigfillset(set: *mut SignalSet) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const SignalSet, before: *mut SignalSet) -> c_int;
    fn atexit(action: extern "C" fn()) -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

#[repr(C)]
struct SignalSet([u64; 16]);

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

/// Runs `action` with all signals blocked. Threads that it starts inherit that.
pub(in super::super) fn without_signals<T>(action: impl FnOnce() -> T) -> T {
    const SET: c_int = 2;
    let (mut all, mut before) = (SignalSet([0; 16]), SignalSet([0; 16]));
    // SAFETY: sets of the C library's size, which it fills.
    unsafe {
        sigfillset(&raw mut all);
        pthread_sigmask(SET, &raw const all, &raw mut before);
    }
    let result = action();
    // SAFETY: as above.
    unsafe { pthread_sigmask(SET, &raw const before, null_mut()) };
    result
}

/// Lowers the calling thread's priority. Not by much, because other threads may wait for what it holds.
pub(in super::super) fn work_behind_others() {
    const PROCESS: c_int = 0;
    const CALLING_THREAD: u32 = 0;
    const PRIORITY: c_int = 10;
    // SAFETY: it takes numbers. If it is not permitted, nothing changes.
    unsafe { setpriority(PROCESS, CALLING_THREAD, PRIORITY) };
}

/// `action` runs in each child that this process forks, and may do only what a signal handler may.
pub(in super::super) fn in_forked_children(action: extern "C" fn()) {
    // SAFETY: a function that lives as long as the library.
    unsafe { pthread_atfork(None, None, Some(action)) };
}

/// `action` runs when this process exits, before everything that was registered earlier.
pub(in super::super) fn at_exit(action: extern "C" fn()) {
    // SAFETY: a function that lives as long as the library.
    unsafe { atexit(action) };
}

/// Sets a variable in the environment of this process and of its children.
pub(super) fn set_variable(name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) {
        // SAFETY: strings that end with nul, which the C library copies under its own lock.
        unsafe { setenv(name.as_ptr(), value.as_ptr(), 1) };
    }
}

pub(in super::super) fn close_descriptor(descriptor: c_int) {
    // SAFETY: closing a descriptor that is not open is a harmless error.
    unsafe { close(descriptor) };
}

/// Returns a descriptor that is readable from the first [`count`] until [`reset`]; -1 if the system provides
/// none.
pub(in super::super) fn counter() -> c_int {
    const NON_BLOCKING_NOT_IN_PROGRAMS: c_int = 0x800 | 0x8_0000;
    // SAFETY: it takes numbers.
    unsafe { eventfd(0, NON_BLOCKING_NOT_IN_PROGRAMS) }
}

pub(in super::super) fn count(counter: c_int) {
    let one = 1_u64;
    // SAFETY: eight bytes, as a counter takes them.
    unsafe { write(counter, (&raw const one).cast(), 8) };
}

pub(in super::super) fn reset(counter: c_int) {
    let mut count = 0_u64;
    // SAFETY: eight bytes, as a counter gives them.
    unsafe { read(counter, (&raw mut count).cast(), 8) };
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
