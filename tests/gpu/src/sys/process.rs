//! The process itself: its exit, forked children, and functions of libraries that it has loaded.

use super::{Answer, Code, Refusal, SUCCESS};
use std::{
    ffi::{CStr, c_char, c_int, c_short, c_ulong, c_void},
    mem::transmute_copy,
    ptr::null_mut,
};

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn fork() -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn poll(files: *mut Polled, count: c_ulong, milliseconds: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
    fn atexit(action: extern "C" fn()) -> c_int;
}

/// `action` runs when this process exits, after everything that is registered later.
pub fn at_exit(action: extern "C" fn()) {
    // SAFETY: a function that lives as long as the program.
    unsafe { atexit(action) };
}

#[repr(C)]
struct Polled {
    file: c_int,
    asked: c_short,
    found: c_short,
}

/// Calls a function that the process has loaded, such as the interposer's, with twelve words that are 0.
///
/// # Errors
/// The code that it returns; 500 if there is no such function.
pub fn call_loaded(name: &CStr) -> Answer {
    #[rustfmt::skip]
    type Words = unsafe extern "C" fn(
        usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize,
    ) -> Code;
    let function: Words = loaded(name)?;
    // SAFETY: the function reads at most these words, and checks them.
    match unsafe { function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) } {
        SUCCESS => Ok(()),
        code => Err(Refusal(code)),
    }
}

/// What a session's Python does when the worker asks for memory that libraries hold: `give_back` runs in a thread.
///
/// # Errors
/// 500 without the interposer.
pub fn when_asked_to_trim(give_back: impl FnOnce() + Send + 'static) -> Answer {
    const READABLE: c_short = 1;
    let trims: extern "C" fn() -> c_int = loaded(c"baton_gpu_trims")?;
    let trimmed: extern "C" fn() = loaded(c"baton_gpu_trimmed")?;
    let mut asked = Polled {
        file: trims(),
        asked: READABLE,
        found: 0,
    };
    std::thread::spawn(move || {
        // SAFETY: one structure, as the system takes it.
        while unsafe { poll(&raw mut asked, 1, -1) } != 1 {}
        give_back();
        trimmed();
    });
    Ok(())
}

/// `F` is the type of the function of this name.
fn loaded<F>(name: &CStr) -> Answer<F> {
    // SAFETY: the name ends with nul, and the caller names the function's type.
    unsafe {
        let found = dlsym(null_mut(), name.as_ptr());
        match found.is_null() {
            true => Err(Refusal(500)),
            false => Ok(transmute_copy(&found)),
        }
    }
}

/// Runs `action` in a forked child, and returns its result.
pub fn in_child(action: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child calls `action`, and ends without the parent's handlers.
    unsafe {
        match fork() {
            0 => _exit(action().into()),
            process => {
                let mut status = 0;
                waitpid(process, &raw mut status, 0);
                status >> 8
            }
        }
    }
}

/// Runs `action` in a forked child, without waiting for it.
pub fn beside_child(action: impl FnOnce()) {
    // SAFETY: as above.
    unsafe {
        if fork() == 0 {
            action();
            _exit(0);
        }
    }
}
