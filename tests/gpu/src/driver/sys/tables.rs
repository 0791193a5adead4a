//! Tables of unnamed functions that cudart before 11.7 looks up. Public sources document a few of these
//! functions; the others are not supported. The table with which later versions verify a driver is absent, and
//! must not be imitated.

use super::{contexts::cuCtxGetCurrent, put};
use crate::{Code, INVALID_HANDLE, LIBRARY, NOT_SUPPORTED, PRIMARY, SUCCESS, lock};
use std::{
    cell::UnsafeCell,
    collections::BTreeMap,
    ffi::{c_int, c_uint, c_void},
    sync::Mutex,
};

struct Table<const LENGTH: usize>([*const c_void; LENGTH]);

unsafe impl<const LENGTH: usize> Sync for Table<LENGTH> {}

/// The first entry is the table's size in bytes.
const fn table<const LENGTH: usize>(
    known: &[(usize, *const c_void)],
    has_size: bool,
) -> Table<LENGTH> {
    let mut table = [unsupported as *const c_void; LENGTH];
    if has_size {
        table[0] = (LENGTH * 8) as *const c_void;
    }
    let mut at = 0;
    while at < known.len() {
        table[known[at].0] = known[at].1;
        at += 1;
    }
    Table(table)
}

static RUNTIME: Table<20> = table(
    &[
        (1, load as *const c_void),
        (2, context as *const c_void),
        (6, load as *const c_void),
        (7, unload as *const c_void),
        (8, load_from as *const c_void),
    ],
    true,
);
static THREADS: Table<8> = table(&[], true);
static HOOKS: Table<10> = table(
    &[
        (2, first_buffer as *const c_void),
        (6, second_buffer as *const c_void),
    ],
    true,
);
static STORAGE: Table<6> = table(
    &[
        (0, keep as *const c_void),
        (1, forget as *const c_void),
        (2, kept as *const c_void),
    ],
    false,
);
static CHECKS: Table<6> = table(
    &[
        (2, check_context as *const c_void),
        (3, check as *const c_void),
    ],
    true,
);

pub(super) fn find(id: [u8; 16]) -> Option<*const c_void> {
    Some(match u128::from_be_bytes(id) {
        0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9 => RUNTIME.0.as_ptr().cast(),
        0x42d8_5a81_23f6_cb47_8298_f6e7_8a3a_ecdc => THREADS.0.as_ptr().cast(),
        0xa094_798c_2e74_2e74_93f2_0800_200c_0a66 => HOOKS.0.as_ptr().cast(),
        0xc693_336e_1121_df11_a8c3_68f3_55d8_9593 => STORAGE.0.as_ptr().cast(),
        0x263e_8860_7cd2_6143_92f6_bbd5_006d_fa7e => CHECKS.0.as_ptr().cast(),
        _ => return None,
    })
}

unsafe extern "C" fn unsupported() -> Code {
    NOT_SUPPORTED
}

// ---- code, and the context of a device

unsafe extern "C" fn load(module: *mut usize) -> Code {
    unsafe { put(module, LIBRARY) }
}

unsafe extern "C" fn load_from(_image: *const c_void, module: *mut usize) -> Code {
    unsafe { put(module, LIBRARY) }
}

unsafe extern "C" fn unload(_module: usize) -> Code {
    SUCCESS
}

unsafe extern "C" fn context(context: *mut usize, _device: c_int) -> Code {
    unsafe { put(context, PRIMARY) }
}

unsafe extern "C" fn check_context(
    _context: usize,
    number: *mut c_uint,
    pointer: *mut usize,
) -> Code {
    unsafe {
        put(number, 0);
        put(pointer, 0)
    }
}

unsafe extern "C" fn check() -> Code {
    SUCCESS
}

// ---- memory that cudart writes to

struct Buffer<const LENGTH: usize>(UnsafeCell<[u64; LENGTH]>);

unsafe impl<const LENGTH: usize> Sync for Buffer<LENGTH> {}

static FIRST: Buffer<1024> = Buffer(UnsafeCell::new([0; 1024]));
static SECOND: Buffer<64> = Buffer(UnsafeCell::new([0; 64]));

unsafe extern "C" fn first_buffer(buffer: *mut usize, length: *mut usize) -> Code {
    unsafe {
        put(buffer, FIRST.0.get() as usize);
        put(length, 1024)
    }
}

unsafe extern "C" fn second_buffer(buffer: *mut usize, length: *mut usize) -> Code {
    unsafe {
        put(buffer, SECOND.0.get() as usize);
        put(length, 14)
    }
}

/// Values that libraries store with a context, by context and key.
static KEPT: Mutex<BTreeMap<(usize, usize), usize>> = Mutex::new(BTreeMap::new());

unsafe fn this_or_current(mut context: usize) -> usize {
    if context == 0 {
        unsafe { cuCtxGetCurrent(&raw mut context) };
    }
    context
}

unsafe extern "C" fn keep(context: usize, key: usize, value: usize, _end: usize) -> Code {
    lock(&KEPT).insert((unsafe { this_or_current(context) }, key), value);
    SUCCESS
}

unsafe extern "C" fn forget(context: usize, key: usize) -> Code {
    lock(&KEPT).remove(&(unsafe { this_or_current(context) }, key));
    SUCCESS
}

unsafe extern "C" fn kept(value: *mut usize, context: usize, key: usize) -> Code {
    let found = lock(&KEPT)
        .get(&(unsafe { this_or_current(context) }, key))
        .copied();
    found.map_or(INVALID_HANDLE, |found| unsafe { put(value, found) })
}
