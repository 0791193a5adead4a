//! The functions of the C library that the interposer calls.

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
    pub(super) fn mmap(
        at: *mut c_void,
        bytes: usize,
        access: c_int,
        flags: c_int,
        file: c_int,
        from: i64,
    ) -> *mut c_void;
    pub(super) fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    pub(super) fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
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
