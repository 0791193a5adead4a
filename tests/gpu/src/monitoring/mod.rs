//! A `libnvidia-ml.so.1` that tells of the card beside it, which `driver` computes on.
//!
//! Not a module of this crate: `build.rs` compiles it alone. It declares what it needs of the interface itself.

#![allow(non_snake_case)]

mod card;
#[path = "../layout.rs"]
mod layout;
#[path = "../locks.rs"]
mod locks;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong};
use std::ptr::copy_nonoverlapping;

use card::Card;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const DRIVER_NOT_LOADED: c_int = 9;

const NAME: &CStr = c"GPU of host memory";
/// Of the card, and the beginning of those of its slices.
const SLICE: &str = "MIG-00000000-0000-0000-0000-";
const UUID: &CStr = c"GPU-00000000-0000-0000-0000-000000000000";

/// Handles: the card's, and those of its slices after it.
const CARD: usize = 1;
const MOST_SLICES: c_uint = 7;

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[repr(C)]
pub struct Process {
    process: c_uint,
    bytes: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    match Card::open() {
        Ok(_) => SUCCESS,
        Err(_) => DRIVER_NOT_LOADED,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    unsafe { *count = 1 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut usize) -> c_int {
    if index > 0 {
        return INVALID_ARGUMENT;
    }
    ask(|_| unsafe { *device = CARD })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut usize) -> c_int {
    let uuid = unsafe { CStr::from_ptr(uuid) };
    let slice = || uuid.to_str().ok()?.strip_prefix(SLICE)?.parse::<usize>().ok();
    let Some(found) = (uuid == UUID).then_some(CARD).or_else(slice) else {
        return NOT_FOUND;
    };
    ask(|_| unsafe { *device = found })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: usize, text: *mut c_char, bytes: c_uint) -> c_int {
    let uuid = match device {
        CARD => UUID.to_owned(),
        slice => CString::new(format!("{SLICE}{slice:012}")).expect("it has no nul"),
    };
    put(&uuid, text, bytes)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(device: usize, is_slice: *mut c_uint) -> c_int {
    ask(|_| unsafe { *is_slice = c_uint::from(device != CARD) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(_device: usize, count: *mut c_uint) -> c_int {
    ask(|_| unsafe { *count = MOST_SLICES })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    _device: usize,
    index: c_uint,
    slice: *mut usize,
) -> c_int {
    let mut found = false;
    let code = ask(|card| unsafe {
        found = u64::from(index) < card.slices;
        *slice = index as usize + CARD + 1;
    });
    if found { code } else { NOT_FOUND }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(_device: usize, text: *mut c_char, bytes: c_uint) -> c_int {
    put(NAME, text, bytes)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(_device: usize, memory: *mut Memory) -> c_int {
    ask(|card| {
        let used: u64 = card.processes.iter().map(|(_, bytes)| bytes).sum();
        unsafe {
            (*memory).total = card.total_bytes;
            (*memory).reserved = 0;
            (*memory).used = used;
            (*memory).free = card.total_bytes - used;
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(_device: usize, rates: *mut Utilization) -> c_int {
    ask(|card| unsafe {
        let gpu = if card.computes { 100 } else { 0 };
        *rates = Utilization { gpu, memory: gpu };
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    _device: usize,
    count: *mut c_uint,
    processes: *mut Process,
) -> c_int {
    let mut fits = true;
    let code = ask(|card| unsafe {
        fits = card.processes.len() <= *count as usize;
        *count = card.processes.len() as c_uint;
        for (index, (process, bytes)) in card.processes.iter().enumerate().filter(|_| fits) {
            processes.add(index).write(Process {
                process: *process,
                bytes: *bytes,
                gpu_instance: c_uint::MAX,
                compute_instance: c_uint::MAX,
            });
        }
    });
    if fits { code } else { INSUFFICIENT_SIZE }
}

fn put(words: &CStr, text: *mut c_char, bytes: c_uint) -> c_int {
    let words = words.to_bytes_with_nul();
    if (bytes as usize) < words.len() {
        return INSUFFICIENT_SIZE;
    }
    ask(|_| unsafe { copy_nonoverlapping(words.as_ptr().cast(), text, words.len()) })
}

/// A card that is lost answers nothing.
fn ask(answer: impl FnOnce(&Card)) -> c_int {
    match Card::open() {
        Err(_) => DRIVER_NOT_LOADED,
        Ok(card) if card.lost != SUCCESS => card.lost,
        Ok(card) => {
            answer(&card);
            SUCCESS
        }
    }
}
