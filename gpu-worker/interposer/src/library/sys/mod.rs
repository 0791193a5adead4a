//! All that touches foreign code: the driver, the C library, and those who call this library.
#![allow(unsafe_code)]

mod context_calls;
pub(super) mod driver;
pub(super) mod host;
mod look_up;
mod memory_calls;
mod monitoring_calls;
mod pool_calls;
mod submissions;
mod word_calls;

use super::PROCESS;

/// A child that was forked cannot use what its parent initialised; the driver says so to it, past the gate.
pub(super) fn forget_in_forked_children() {
    extern "C" fn forget() {
        PROCESS.gate.give_up();
        host::close_descriptor(
            PROCESS
                .descriptor
                .load(std::sync::atomic::Ordering::Relaxed),
        );
    }
    host::in_forked_children(forget);
}

/// Sessions take turns.
fn is_in_use() -> bool {
    PROCESS.gate.is_in_use()
}

/// How many submissions of this process have passed the gate, modulo 2^32: for checks beside a profiler.
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

/// A function of this library that stands for one of the same name: the driver's, or its monitoring's.
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
        pool_calls::WRAPPERS,
        context_calls::WRAPPERS,
        look_up::WRAPPERS,
        word_calls::ASKED,
        word_calls::GRAPH_MEMORY,
        word_calls::MADE,
        monitoring_calls::WRAPPERS,
    ];
    tables.into_iter().flatten()
}

/// Makes a table of functions that are defined elsewhere in the module.
macro_rules! table {
    ($($name:ident)*) => {
        pub(super) static WRAPPERS: &[super::Wrapper] = &[$(
            super::Wrapper { name: stringify!($name), address: $name as *const () },
        )*];
    };
}
use table;

/// Makes wrappers and the table of them; within, `$driver` is the function of that name that is wrapped. Where there is
/// none, they answer with the module's `NOT_FOUND`.
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
