//! A `libnvidia-ml.so.1` that tells of the card beside it, which `driver` computes on.
//!
//! Not a module of this crate: `build.rs` compiles it alone. It declares what it needs of the interface itself.

#![allow(non_snake_case)]

mod card;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};
use std::ptr::copy_nonoverlapping;

use card::Card;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const DRIVER_NOT_LOADED: c_int = 9;

const NAME: &CStr = c"GPU of host memory";
const UUID: &CStr = c"GPU-00000000-0000-0000-0000-000000000000";

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
    ask(|_| unsafe { *device = 1 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut usize) -> c_int {
    if unsafe { CStr::from_ptr(uuid) } != UUID {
        return NOT_FOUND;
    }
    ask(|_| unsafe { *device = 1 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(_device: usize, text: *mut c_char, bytes: c_uint) -> c_int {
    let name = NAME.to_bytes_with_nul();
    if (bytes as usize) < name.len() {
        return INSUFFICIENT_SIZE;
    }
    ask(|_| unsafe { copy_nonoverlapping(name.as_ptr().cast(), text, name.len()) })
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
