//! Wrappers of the driver's monitoring (NVML), which `nvidia-smi` and `pynvml` show: a session sees only its own
//! memory and its own processes.
//!
//! Structures: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceStructs.html
#![allow(non_snake_case)]

use super::{
    super::{
        monitoring::{Use, own_use},
        wire::DEVICE,
    },
    driver::{Code, Export, SUCCESS},
    wrap,
};
use std::{
    ffi::{CStr, c_char, c_uint, c_ulonglong},
    mem::transmute,
};

/// `NVML_ERROR_INSUFFICIENT_SIZE` and `NVML_ERROR_FUNCTION_NOT_FOUND`.
const INSUFFICIENT_SIZE: Code = 7;
const NOT_FOUND: Code = 13;

const UUID_BYTES: usize = 96;
const NO_INSTANCE: c_uint = c_uint::MAX;

/// `nvmlMemory_t`.
#[repr(C)]
pub(super) struct Memory {
    pub(super) total: c_ulonglong,
    pub(super) free: c_ulonglong,
    pub(super) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(super) struct MemoryV2 {
    pub(super) version: c_uint,
    pub(super) total: c_ulonglong,
    pub(super) reserved: c_ulonglong,
    pub(super) free: c_ulonglong,
    pub(super) used: c_ulonglong,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
pub(super) struct ProcessV1 {
    pub(super) process: c_uint,
    pub(super) bytes: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which the third version of the calls also takes.
#[repr(C)]
pub(super) struct ProcessV2 {
    pub(super) process: c_uint,
    pub(super) bytes: c_ulonglong,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
}

impl From<(u32, u64)> for ProcessV1 {
    fn from((process, bytes): (u32, u64)) -> Self {
        Self { process, bytes }
    }
}

impl From<(u32, u64)> for ProcessV2 {
    fn from((process, bytes): (u32, u64)) -> Self {
        Self {
            process,
            bytes,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        }
    }
}

/// What the session has of this GPU, if it is the session's own GPU.
fn own(device: usize) -> Option<Use> {
    let is_own = match std::env::var(DEVICE) {
        Ok(name) => uuid(device).is_some_and(|uuid| uuid == name),
        Err(_) => true, // there is only one
    };
    is_own.then(own_use)?
}

fn uuid(device: usize) -> Option<String> {
    type Get = unsafe extern "C" fn(usize, *mut c_char, c_uint) -> Code;
    static EXPORT: Export = Export::new("nvmlDeviceGetUUID\0");
    let address = EXPORT.address()?;
    let mut text = [0; UUID_BYTES];
    // SAFETY: the library's function, the caller's device, and room of the size that is given.
    let code = unsafe {
        transmute::<usize, Get>(address)(device, text.as_mut_ptr().cast(), UUID_BYTES as c_uint)
    };
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    (code == SUCCESS).then(|| text.to_string_lossy().into_owned())
}

/// Replaces the total, reserved, free and used bytes of the whole GPU with the session's.
fn narrow(
    device: usize,
    total: &mut c_ulonglong,
    reserved: &mut c_ulonglong,
    free: &mut c_ulonglong,
    used: &mut c_ulonglong,
) {
    let Some(own) = own(device) else { return };
    *total -= std::mem::take(reserved);
    if own.cap_bytes > 0 {
        *total = own.cap_bytes.min(*total);
    }
    *used = own.bytes.min(*total);
    *free = *total - *used;
}

/// Lists the processes of this session instead of all that compute on the GPU.
fn own_processes<T: From<(u32, u64)>>(
    device: usize,
    count: *mut c_uint,
    places: *mut T,
    real: impl FnOnce() -> Code,
) -> Code {
    list(device, count, places, real, |own| own.processes)
}

/// Lists processes of a kind that sessions do not have.
fn no_processes<T: From<(u32, u64)>>(
    device: usize,
    count: *mut c_uint,
    places: *mut T,
    real: impl FnOnce() -> Code,
) -> Code {
    list(device, count, places, real, |_| Vec::new())
}

fn list<T: From<(u32, u64)>>(
    device: usize,
    count: *mut c_uint,
    places: *mut T,
    real: impl FnOnce() -> Code,
    of: impl FnOnce(Use) -> Vec<(u32, u64)>,
) -> Code {
    // SAFETY: the caller passes valid arguments; it may be null.
    let (Some(count), Some(own)) = (unsafe { count.as_mut() }, own(device)) else {
        return real();
    };
    let processes = of(own);
    let room = std::mem::replace(count, processes.len() as c_uint) as usize;
    if room < processes.len() {
        return INSUFFICIENT_SIZE;
    }
    for (index, process) in processes.into_iter().enumerate() {
        // SAFETY: the caller has passed for how many there is room.
        unsafe { places.add(index).write(process.into()) };
    }
    SUCCESS
}

wrap! {
    fn nvmlDeviceGetMemoryInfo(device: usize, memory: *mut Memory) |real| {
        let code = real();
        // SAFETY: the library has just written there.
        if let (SUCCESS, Some(memory)) = (code, unsafe { memory.as_mut() }) {
            narrow(device, &mut memory.total, &mut 0, &mut memory.free, &mut memory.used);
        }
        code
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: usize, memory: *mut MemoryV2) |real| {
        let code = real();
        // SAFETY: the library has just written there.
        if let (SUCCESS, Some(memory)) = (code, unsafe { memory.as_mut() }) {
            let MemoryV2 { total, reserved, free, used, .. } = memory;
            narrow(device, total, reserved, free, used);
        }
        code
    }

    fn nvmlDeviceGetComputeRunningProcesses(device: usize, count: *mut c_uint, places: *mut ProcessV1) |real| {
        own_processes(device, count, places, real)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: usize, count: *mut c_uint, places: *mut ProcessV2) |real| {
        own_processes(device, count, places, real)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: usize, count: *mut c_uint, places: *mut ProcessV2) |real| {
        own_processes(device, count, places, real)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(device: usize, count: *mut c_uint, places: *mut ProcessV1) |real| {
        no_processes(device, count, places, real)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: usize, count: *mut c_uint, places: *mut ProcessV2) |real| {
        no_processes(device, count, places, real)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: usize, count: *mut c_uint, places: *mut ProcessV2) |real| {
        no_processes(device, count, places, real)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(device: usize, count: *mut c_uint, places: *mut ProcessV1) |real| {
        no_processes(device, count, places, real)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: usize, count: *mut c_uint, places: *mut ProcessV2) |real| {
        no_processes(device, count, places, real)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: usize, count: *mut c_uint, places: *mut ProcessV2) |real| {
        no_processes(device, count, places, real)
    }
}
