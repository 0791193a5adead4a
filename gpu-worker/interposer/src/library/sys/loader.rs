//! The dynamic loader's own `dlsym`, which the wrapper of this name hides.

use super::host::{RTLD_NEXT, dlvsym};
use std::{
    ffi::{c_char, c_void},
    mem::transmute,
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The dynamic loader's `dlsym` after the first call; before that, the function that finds it.
pub(super) static REAL: AtomicPtr<()> = AtomicPtr::new(find_and_jump as *mut ());

/// # Safety
/// As for `dlsym`, except that the calling library is this one.
pub(super) unsafe fn real_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: `REAL` holds only functions of this type.
    unsafe { transmute::<*mut (), Dlsym>(REAL.load(Relaxed))(handle, name) }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn find_and_jump() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        find = sym find,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn find_and_jump() {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x9",
        find = sym find,
    )
}

/// The loader has exported its `dlsym` under one of these versions.
extern "C" fn find() -> *mut () {
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
        // SAFETY: strings that end with nul.
        let found = unsafe { dlvsym(RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            REAL.store(found.cast(), Relaxed);
            return found.cast();
        }
    }
    absent as *mut ()
}

extern "C" fn absent(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}
