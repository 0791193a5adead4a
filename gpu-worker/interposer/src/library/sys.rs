//! Everything that touches foreign code: the driver, the C library, and the callers of this library.
#![allow(unsafe_code)]

mod context_calls;
pub(super) mod driver;
mod event_calls;
pub(super) mod host;
pub(super) mod host_memory;
mod loader;
mod look_up;
mod mapping_calls;
mod memory_calls;
mod monitoring_calls;
mod pool_calls;
mod structures;
mod submissions;
mod word_calls;

use super::PROCESS;
use std::sync::atomic::Ordering::Relaxed;

/// A forked child cannot use what its parent initialised. Its calls pass the gate, and the driver reports the
/// error.
pub(super) fn forget_in_forked_children() {
    extern "C" fn forget() {
        PROCESS.gate.give_up();
        // Only once: a file that the child opens may get the same descriptor, and its own children inherit it.
        host::close_descriptor(PROCESS.descriptor.swap(-1, Relaxed));
    }
    host::in_forked_children(forget);
}

/// Functions that are registered later run earlier.
pub(super) fn end_at_exit() {
    extern "C" fn end() {
        PROCESS.end();
    }
    host::at_exit(end);
}

/// Whether sessions time-share the GPU.
fn is_in_use() -> bool {
    PROCESS.gate.is_in_use()
}

/// How many submissions of this process have passed the gate, modulo 2^32, for comparison with a profiler.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn baton_gpu_submissions() -> u32 {
    super::PROCESS.gate.submissions()
}

/// For the session's Python: see [`super::Process::trims`].
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn baton_gpu_trims() -> std::ffi::c_int {
    super::PROCESS.trims()
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn baton_gpu_trimmed() {
    super::PROCESS.trimmed();
}

/// A function of this library that replaces the function of the same name in the driver or in its monitoring.
struct Wrapper {
    name: &'static str,
    address: *const (),
}

// SAFETY: the address of a function.
unsafe impl Sync for Wrapper {}

/// The wrapper of a function of this name.
fn wrapper(name: &str) -> Option<&'static Wrapper> {
    wrappers().find(|wrapper| wrapper.name == name)
}

fn wrappers() -> impl Iterator<Item = &'static Wrapper> {
    let tables = [
        submissions::SHORT,
        submissions::LONG,
        submissions::CONFIGURED,
        submissions::CAPTURE_BEGINS,
        submissions::CAPTURE_ENDS,
        memory_calls::WRAPPERS,
        mapping_calls::WRAPPERS,
        pool_calls::WRAPPERS,
        context_calls::WRAPPERS,
        event_calls::WRAPPERS,
        look_up::WRAPPERS,
        word_calls::ASKED,
        word_calls::GRAPH_MEMORY,
        word_calls::MADE,
        word_calls::INSTANTIATED,
        monitoring_calls::WRAPPERS,
    ];
    tables.into_iter().flatten()
}

/// Defines a table of functions that are defined elsewhere in the module.
macro_rules! table {
    ($($name:ident)*) => {
        pub(super) static WRAPPERS: &[super::Wrapper] = &[$(
            super::Wrapper { name: stringify!($name), address: $name as *const () },
        )*];
    };
}
use table;

/// Defines wrappers and their table. In a body, `$driver` calls the wrapped function of the same name. If that does
/// not exist, the wrapper returns the module's `NOT_FOUND`.
macro_rules! wrap {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) |$driver:ident| $body:block)*) => {
        $(#[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name($($argument: $kind),*) -> Code {
            static EXPORT: Export = Export::new(concat!(stringify!($name), "\0"));
            let Some(address) = EXPORT.address() else {
                return NOT_FOUND;
            };
            // SAFETY: the driver's function of this name has this signature, and the caller's arguments.
            let $driver = || unsafe {
                transmute::<usize, unsafe extern "C" fn($($kind),*) -> Code>(address)($($argument),*)
            };
            $body
        })*
        super::table! { $($name)* }
    };
}
use wrap;

#[cfg(test)]
mod tests;
