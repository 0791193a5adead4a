//! A `libnvidia-ml.so.1` that reports on the cards in its folder, which `driver` uses.
//!
//! Not a module of this crate: `build.rs` compiles it separately. It declares the parts of NVML that it needs
//! itself.

#![allow(non_snake_case)]

mod card;
#[path = "../layout.rs"]
mod layout;
#[path = "../locks.rs"]
mod locks;

use card::Card;
use layout::{RESERVED_BYTES, UUID};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong},
    ptr::copy_nonoverlapping,
};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const DRIVER_NOT_LOADED: c_int = 9;

const NAME: &CStr = c"GPU of host memory";
/// Like `UUID`, for slices. The UUID of a slice ends with the number of its handle.
const SLICE: &str = "MIG-00000000-0000-0000-0000-";

/// How many handles each card has: one for the card, then those of its slices. Handles count from one.
const HANDLES: usize = 1 + MOST_SLICES as usize;
const MOST_SLICES: c_uint = 7;

fn card_of(device: usize) -> usize {
    (device - 1) / HANDLES
}

fn is_card(device: usize) -> bool {
    (device - 1) % HANDLES == 0
}

fn handle_of(card: usize) -> usize {
    1 + card * HANDLES
}

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

#[repr(C)]
pub struct Sample {
    process: c_uint,
    time: c_ulonglong,
    gpu: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    match Card::open(0) {
        Ok(_) => SUCCESS,
        Err(_) => DRIVER_NOT_LOADED,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_int {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    unsafe { *count = (0..).take_while(|card| Card::open(*card).is_ok()).count() as c_uint };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut usize) -> c_int {
    let handle = handle_of(index as usize);
    if Card::open(card_of(handle)).is_err() {
        return INVALID_ARGUMENT;
    }
    ask(handle, |_| unsafe { *device = handle })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut usize,
) -> c_int {
    let uuid = unsafe { CStr::from_ptr(uuid) }.to_str().unwrap_or_default();
    let number = |beginning| uuid.strip_prefix(beginning)?.parse::<usize>().ok();
    let Some(found) = number(UUID).map(handle_of).or_else(|| number(SLICE)) else {
        return NOT_FOUND;
    };
    if Card::open(card_of(found)).is_err() {
        return NOT_FOUND;
    }
    ask(found, |_| unsafe { *device = found })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: usize,
    text: *mut c_char,
    bytes: c_uint,
) -> c_int {
    let uuid = match is_card(device) {
        true => format!("{UUID}{:012}", card_of(device)),
        false => format!("{SLICE}{device:012}"),
    };
    put(
        device,
        &CString::new(uuid).expect("it has no nul"),
        text,
        bytes,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(
    device: usize,
    is_slice: *mut c_uint,
) -> c_int {
    ask(device, |_| unsafe {
        *is_slice = c_uint::from(!is_card(device))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    slice: usize,
    device: *mut usize,
) -> c_int {
    match is_card(slice) {
        true => INVALID_ARGUMENT,
        false => ask(slice, |_| unsafe { *device = handle_of(card_of(slice)) }),
    }
}

/// The driver numbers slices of a seventh from 7 on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(slice: usize, number: *mut c_uint) -> c_int {
    match is_card(slice) {
        true => INVALID_ARGUMENT,
        false => ask(slice, |_| unsafe {
            *number = MOST_SLICES + (slice - handle_of(card_of(slice)) - 1) as c_uint;
        }),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(
    slice: usize,
    number: *mut c_uint,
) -> c_int {
    match is_card(slice) {
        true => INVALID_ARGUMENT,
        false => ask(slice, |_| unsafe { *number = 0 }),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    device: usize,
    count: *mut c_uint,
) -> c_int {
    ask(device, |_| unsafe { *count = MOST_SLICES })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: usize,
    index: c_uint,
    slice: *mut usize,
) -> c_int {
    let mut found = false;
    let code = ask(device, |card| unsafe {
        found = u64::from(index) < card.slices;
        *slice = device + 1 + index as usize;
    });
    if found { code } else { NOT_FOUND }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: usize,
    text: *mut c_char,
    bytes: c_uint,
) -> c_int {
    put(device, NAME, text, bytes)
}

/// Total, free and used bytes, which include what the driver keeps for itself (`nvmlMemory_t::used`: "Sum of Reserved
/// and Allocated device memory"). Only the second version counts that separately.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: usize,
    memory: *mut [c_ulonglong; 3],
) -> c_int {
    ask(device, |card| {
        let (total, free) = (card.total_bytes + RESERVED_BYTES, card.total_bytes - used_bytes(card));
        unsafe { *memory = [total, free, total - free] };
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: usize, memory: *mut Memory) -> c_int {
    ask(device, |card| {
        let used = used_bytes(card);
        unsafe {
            (*memory).total = card.total_bytes + RESERVED_BYTES;
            (*memory).reserved = RESERVED_BYTES;
            (*memory).used = used;
            (*memory).free = card.total_bytes - used;
        }
    })
}

fn used_bytes(card: &Card) -> u64 {
    card.processes.iter().map(|process| process.bytes).sum()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: usize,
    rates: *mut Utilization,
) -> c_int {
    ask(device, |card| unsafe {
        let gpu = percent(card.processes.iter().any(|process| process.computes));
        *rates = Utilization { gpu, memory: gpu };
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: usize,
    count: *mut c_uint,
    processes: *mut Process,
) -> c_int {
    list(device, count, processes, |process| Process {
        process: process.number,
        bytes: process.bytes,
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    })
}

/// A real driver lists processes that computed after `since`; this one lists the current state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: usize,
    samples: *mut Sample,
    count: *mut c_uint,
    since: c_ulonglong,
) -> c_int {
    list(device, count, samples, |process| Sample {
        process: process.number,
        time: since + 1,
        gpu: percent(process.computes),
        memory: 0,
        encoder: 0,
        decoder: 0,
    })
}

fn percent(computes: bool) -> c_uint {
    if computes { 100 } else { 0 }
}

/// Writes one entry for each process if `count` has enough room, and sets `count` to the number of processes.
fn list<T>(
    device: usize,
    count: *mut c_uint,
    places: *mut T,
    of: impl Fn(&card::Process) -> T,
) -> c_int {
    let mut fits = true;
    let code = ask(device, |card| unsafe {
        fits = card.processes.len() <= *count as usize;
        *count = card.processes.len() as c_uint;
        for (index, process) in card.processes.iter().enumerate().filter(|_| fits) {
            places.add(index).write(of(process));
        }
    });
    if fits { code } else { INSUFFICIENT_SIZE }
}

fn put(device: usize, words: &CStr, text: *mut c_char, bytes: c_uint) -> c_int {
    let words = words.to_bytes_with_nul();
    if (bytes as usize) < words.len() {
        return INSUFFICIENT_SIZE;
    }
    ask(device, |_| unsafe {
        copy_nonoverlapping(words.as_ptr().cast(), text, words.len())
    })
}

/// Answers for a card, unless it is lost.
fn ask(device: usize, answer: impl FnOnce(&Card)) -> c_int {
    match Card::open(card_of(device)) {
        Err(_) => DRIVER_NOT_LOADED,
        Ok(card) if card.lost != SUCCESS => card.lost,
        Ok(card) => {
            answer(&card);
            SUCCESS
        }
    }
}
