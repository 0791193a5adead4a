//! The driver's exported functions, and the functions of the C library that they call.

mod checkpoints;
mod contexts;
mod graphs;
mod libraries;
mod look_up;
mod mapping;
mod memory;
mod pinned;
mod pools;
mod streams;
mod structures;
mod tables;

use super::host::{READ_WRITE, SHARED, mmap};
use std::ffi::{c_char, c_int, c_long, c_void};

unsafe extern "C" {
    fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    fn mprotect(at: *mut c_void, bytes: usize, access: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: u32) -> c_int;
    fn ftruncate(file: c_int, bytes: c_long) -> c_int;
    fn close(file: c_int) -> c_int;
    fn atexit(action: extern "C" fn()) -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

const NO_ACCESS: c_int = 0;
const PRIVATE: c_int = 2;
const FIXED: c_int = 0x10;
const ANONYMOUS: c_int = 0x20;
const NO_RESERVE: c_int = 0x4000;

/// Defines exported functions. After a fork, after a fatal error, and for a requested fault they return that
/// error.
macro_rules! api {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> crate::Code {
            if let Some(code) = crate::refusal(stringify!($name)) {
                return code;
            }
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )*};
}
use api;

/// The same for functions that need the calling thread's context. If there is none, or if it has ended, they
/// return that error (`CUDA_ERROR_INVALID_CONTEXT`: most often no context is bound to the thread;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`: the thread's context was destroyed, or is a primary context that is not
/// initialised).
macro_rules! bound {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        super::api! {$(
            fn $name($($argument: $kind),*) {
                match crate::context() {
                    Ok(_) => $body,
                    Err(code) => code,
                }
            }
        )*}
    };
}
use bound;

pub(crate) use pinned::notice_forks;

/// From now on, calls that come while this process exits get an error.
pub(crate) fn notice_exit() {
    extern "C" fn exits() {
        crate::HAS_ENDED.store(true, std::sync::atomic::Ordering::SeqCst);
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        unsafe { atexit(exits) };
    });
}

/// Functions that libraries look up and that are not implemented here: they return that they are not supported.
mod absent {
    include!(env!("ABSENT"));
}

/// Writes a result to the caller's address.
unsafe fn put<T>(at: *mut T, value: T) -> crate::Code {
    if at.is_null() {
        return crate::INVALID_VALUE;
    }
    unsafe { at.write(value) };
    crate::SUCCESS
}
