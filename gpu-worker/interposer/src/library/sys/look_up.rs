//! How programs find the driver's functions, and how they get the wrappers instead.
//!
//! A program asks the dynamic loader (`dlsym`) or the driver (`cuGetProcAddress`). Both answer as usual. An answer
//! is replaced only if it is the address of a wrapped function, of the driver or of its monitoring. So names,
//! versions and kinds of default stream mean what they mean to the driver.

use super::{
    super::{PROCESS, wire::DEVICE},
    driver::{self, Code, Export, Library, NOT_FOUND, SUCCESS},
    host::{self, RTLD_NOLOAD},
    loader::{REAL, real_dlsym},
    table, wrapper, wrappers,
};
use std::{
    ffi::{c_char, c_int, c_void},
    mem::transmute,
};

/// The first two letters of all wrapped functions' names.
const BEGINNINGS: [u16; 2] = [u16::from_le_bytes(*b"cu"), u16::from_le_bytes(*b"nv")];

/// The loader looks at who calls it. So if a name is not wrapped, this jumps to the loader with registers and stack
/// unchanged, as if the caller had called it. Nothing here allocates, locks or reads the environment.
///
/// # Safety
/// As for the C library's function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
pub(super) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "cmp word ptr [rsi], {cu}",
        "je 3f",
        "cmp word ptr [rsi], {nv}",
        "jne 2f",
        "3:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {wrapped}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        cu = const BEGINNINGS[0],
        nv = const BEGINNINGS[1],
        wrapped = sym wrapped,
        real = sym REAL,
    )
}

/// # Safety
/// As for the C library's function.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
pub(super) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "ldrb w9, [x1]",
        "ldrb w10, [x1, #1]",
        "orr w9, w9, w10, lsl #8",
        "mov w10, #{cu}",
        "cmp w9, w10",
        "b.eq 3f",
        "mov w10, #{nv}",
        "cmp w9, w10",
        "b.ne 2f",
        "3:",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {wrapped}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x9, 2f",
        "mov x0, x9",
        "ret",
        "2:",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "br x9",
        cu = const BEGINNINGS[0],
        nv = const BEGINNINGS[1],
        wrapped = sym wrapped,
        real = sym REAL,
    )
}

/// The wrapper, if the loader's answer would be the function that it wraps; null if the caller must ask the loader
/// itself.
///
/// # Safety
/// As for `dlsym`.
unsafe extern "C" fn wrapped(handle: *mut c_void, asked: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes valid arguments.
    let Some(wrapper) = unsafe { driver::name(asked) }.and_then(wrapper) else {
        return std::ptr::null_mut();
    };
    let Some(library) = Library::of(wrapper.name).open(RTLD_NOLOAD) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the caller passes valid arguments.
    let (found, export) = unsafe { (real_dlsym(handle, asked), real_dlsym(library, asked)) };
    match found == export && !found.is_null() {
        true => wrapper.address as *mut c_void,
        false => std::ptr::null_mut(),
    }
}

#[allow(non_snake_case)]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn cuInit(flags: u32) -> Code {
    static EXPORT: Export = Export::new("cuInit\0");
    let Some(address) = EXPORT.address() else {
        return NOT_FOUND;
    };
    keep_to_own_device();
    // SAFETY: the driver's function.
    let code = unsafe { transmute::<usize, unsafe extern "C" fn(u32) -> Code>(address)(flags) };
    if code == SUCCESS {
        PROCESS.start();
    }
    code
}

/// The driver is about to read which GPUs the process may see. Programs often set this to the first GPU, which may
/// be another session's. Programs that want no GPU get none.
fn keep_to_own_device() {
    const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
    let Ok(own) = std::env::var(DEVICE) else {
        return;
    };
    let is_kept = match std::env::var(VISIBLE) {
        Ok(visible) => visible.is_empty() || visible.starts_with("-1") || visible == own,
        Err(_) => false,
    };
    if !is_kept {
        host::set_variable(VISIBLE, &own);
    }
}

type LookUp = unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64) -> Code;
type LookUpWithStatus =
    unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64, *mut c_int) -> Code;

#[allow(non_snake_case)]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    function: *mut usize,
    version: c_int,
    flags: u64,
) -> Code {
    static EXPORT: Export = Export::new("cuGetProcAddress\0");
    let Some(address) = EXPORT.address() else {
        return NOT_FOUND;
    };
    // SAFETY: the driver's function, and the caller's arguments.
    unsafe {
        let code = transmute::<usize, LookUp>(address)(name, function, version, flags);
        replace(code, name, function);
        code
    }
}

#[allow(non_snake_case)]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut usize,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Code {
    static EXPORT: Export = Export::new("cuGetProcAddress_v2\0");
    let Some(address) = EXPORT.address() else {
        return NOT_FOUND;
    };
    // SAFETY: the driver's function, and the caller's arguments.
    unsafe {
        let code =
            transmute::<usize, LookUpWithStatus>(address)(name, function, version, flags, status);
        replace(code, name, function);
        code
    }
}

/// Replaces the function that the driver returned with its wrapper. A driver returns the addresses that it exports.
/// Versions of a function that are newer than this library have no wrapper.
///
/// # Safety
/// `asked` and `function` are arguments that the driver has accepted.
unsafe fn replace(code: Code, asked: *const c_char, function: *mut usize) {
    if code != SUCCESS || function.is_null() {
        return;
    }
    // SAFETY: the caller passes valid arguments.
    let (asked, found) = unsafe { (driver::name(asked), *function) };
    let Some(asked) = asked.filter(|_| found != 0) else {
        return;
    };
    let mut of_that_name = wrappers().filter(|one| one.name.starts_with(asked));
    let same = of_that_name.find(|one| driver::export_address(one.name) == Some(found));
    if let Some(wrapper) = same {
        // SAFETY: the caller passes valid arguments.
        unsafe { *function = wrapper.address as usize };
    }
}

table! { cuInit cuGetProcAddress cuGetProcAddress_v2 }
