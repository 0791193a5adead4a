//! Wrappers of the calls that allocate and free, and of those that ask about memory.
//!
//! Memory that can leave the GPU is allocated by the interposer. All other memory is allocated by the driver and
//! counted. While the gate is not in use, every call goes to the driver.
#![allow(non_snake_case)]

use super::{
    super::{PROCESS, room},
    driver::{
        self, Code, Context, Export, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, PER_THREAD, SUCCESS,
        Stream,
    },
    is_in_use, wrap,
};
use std::{
    collections::BTreeSet,
    ffi::{c_int, c_void},
    mem::transmute,
    sync::{Mutex, PoisonError},
};

wrap! {
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |driver| {
        if is_ours(address.is_null() || bytes == 0) { allocate(address, bytes as u64) } else { driver() }
    }

    fn cuMemAllocPitch_v2(address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) |driver| {
        let _ = element;
        if !is_ours(address.is_null() || pitch.is_null() || width == 0 || height == 0) {
            return driver();
        }
        let row = width.next_multiple_of(PITCH);
        let code = row.checked_mul(height).map_or(INVALID_VALUE, |bytes| allocate(address, bytes as u64));
        if code == SUCCESS {
            // SAFETY: the caller passes valid arguments.
            unsafe { *pitch = row };
        }
        code
    }

    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) |driver| {
        allocate_in_order(address, bytes, None, Stream(stream), driver)
    }

    fn cuMemAllocAsync_ptsz(address: *mut u64, bytes: usize, stream: usize) |driver| {
        allocate_in_order(address, bytes, None, own_default(stream), driver)
    }

    fn cuMemFree_v2(address: u64) |driver| {
        freeing(address, || PROCESS.free(address), driver)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) |driver| {
        freeing(address, || PROCESS.free_in_order(address, Stream(stream)), driver)
    }

    fn cuMemFreeAsync_ptsz(address: u64, stream: usize) |driver| {
        freeing(address, || PROCESS.free_in_order(address, own_default(stream)), driver)
    }

    fn cuStreamDestroy(stream: usize) |driver| { ending(stream, driver) }

    fn cuStreamDestroy_v2(stream: usize) |driver| { ending(stream, driver) }

    // ---- memory that cannot leave the GPU

    fn cuMemAllocManaged(address: *mut u64, bytes: usize, flags: u32) |driver| {
        let _ = flags;
        fixed(address, bytes as u64, driver)
    }

    fn cuArrayCreate_v2(array: *mut u64, description: *const ArrayDescription) |driver| {
        // SAFETY: the caller passes valid arguments.
        let bytes = unsafe { description.as_ref() }.map_or(0, ArrayDescription::bytes);
        fixed(array, bytes, driver)
    }

    fn cuArray3DCreate_v2(array: *mut u64, description: *const Array3dDescription) |driver| {
        // SAFETY: the caller passes valid arguments.
        let bytes = unsafe { description.as_ref() }.map_or(0, Array3dDescription::bytes);
        fixed(array, bytes, driver)
    }

    fn cuArrayDestroy(array: u64) |driver| { forgetting(array, driver()) }

    fn cuMipmappedArrayCreate(array: *mut u64, description: *const Array3dDescription, levels: u32) |driver| {
        let _ = levels;
        // SAFETY: the caller passes valid arguments. All smaller levels together are smaller than the first.
        let bytes = unsafe { description.as_ref() }.map_or(0, |one| one.bytes() * 2);
        fixed(array, bytes, driver)
    }

    fn cuMipmappedArrayDestroy(array: u64) |driver| { forgetting(array, driver()) }

    fn cuImportExternalMemory(memory: *mut u64, description: *const ExternalDescription) |driver| {
        // SAFETY: the caller passes valid arguments.
        let bytes = unsafe { description.as_ref() }.map_or(0, |one| one.bytes);
        fixed(memory, bytes, driver)
    }

    fn cuDestroyExternalMemory(memory: u64) |driver| { forgetting(memory, driver()) }

    // ---- what would prevent memory from moving

    fn cuIpcGetMemHandle(handle: *mut c_void, address: u64) |driver| {
        let _ = handle;
        refusing(address, "shared with another process (cuIpcGetMemHandle)", driver)
    }

    fn cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: u64, bytes: usize, kind: c_int, flags: u64
    ) |driver| {
        let _ = (handle, bytes, kind, flags);
        refusing(address, "given to another device (cuMemGetHandleForAddressRange)", driver)
    }

    fn cuMemPoolExportPointer(data: *mut c_void, address: u64) |driver| {
        let _ = data;
        refusing(address, "shared with another process (cuMemPoolExportPointer)", driver)
    }

    fn cuMulticastBindAddr(handle: u64, offset: usize, address: u64, bytes: usize, flags: u64) |driver| {
        let _ = (handle, offset, bytes, flags);
        refusing(address, "bound to several GPUs (cuMulticastBindAddr)", driver)
    }

    fn cuMulticastBindAddr_v2(
        handle: u64, device: c_int, offset: usize, address: u64, bytes: usize, flags: u64
    ) |driver| {
        let _ = (handle, device, offset, bytes, flags);
        refusing(address, "bound to several GPUs (cuMulticastBindAddr)", driver)
    }

    fn cuLogicalEndpointBindAddr(
        endpoint: u64, device: c_int, offset: u64, address: u64, bytes: u64, flags: u64
    ) |driver| {
        let _ = (endpoint, device, offset, bytes, flags);
        refusing(address, "bound to a logical endpoint (cuLogicalEndpointBindAddr)", driver)
    }

    // ---- information

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let code = driver();
        if code == SUCCESS && is_in_use() {
            // SAFETY: the caller passes valid arguments; both may be null.
            unsafe {
                if let Some(free) = free.as_mut() {
                    *free = PROCESS.free_bytes() as usize;
                }
                if let Some(total) = total.as_mut() {
                    *total = PROCESS.total_bytes() as usize;
                }
            }
        }
        code
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |driver| {
        let _ = device;
        let code = driver();
        if code == SUCCESS && is_in_use() {
            // SAFETY: the driver has just written there.
            unsafe { *bytes = (PROCESS.total_bytes() as usize).min(*bytes) };
        }
        code
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) |driver| {
        let Some(range) = find(address) else { return driver() };
        // SAFETY: the caller passes valid arguments; both may be null.
        unsafe {
            if let Some(base) = base.as_mut() {
                *base = range.address;
            }
            if let Some(bytes) = bytes.as_mut() {
                *bytes = range.bytes as usize;
            }
        }
        SUCCESS
    }

    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) |driver| {
        if find(address).is_none() {
            return driver();
        }
        // The driver knows only memory that is on the GPU.
        let code = PROCESS.ask(driver);
        if code == SUCCESS {
            correct(value, attribute, address);
        }
        code
    }

    fn cuPointerGetAttributes(count: u32, attributes: *const c_int, values: *const *mut c_void, address: u64) |driver| {
        if find(address).is_none() {
            return driver();
        }
        let code = PROCESS.ask(driver);
        if code == SUCCESS {
            for index in 0..count as usize {
                // SAFETY: the caller passes `count` of both.
                let (attribute, value) = unsafe { (*attributes.add(index), *values.add(index)) };
                correct(value, attribute, address);
            }
        }
        code
    }
}

const PITCH: usize = 512;

/// Whether the interposer allocates this; the driver answers calls that make no sense.
pub(super) fn is_ours(is_nonsense: bool) -> bool {
    is_in_use() && !is_nonsense && PROCESS.can_move()
}

/// Memory that is allocated while a stream is captured belongs to the graph. `pool`: the one that the call names.
pub(super) fn allocate_in_order(
    address: *mut u64,
    bytes: usize,
    pool: Option<usize>,
    stream: Stream,
    driver: impl FnOnce() -> Code,
) -> Code {
    if !is_ours(address.is_null() || bytes == 0) || PROCESS.captures.has(stream) {
        return driver();
    }
    let pool = pool.unwrap_or_else(driver::pool_in_use);
    // SAFETY: the caller passes valid arguments, and it is not null.
    unsafe {
        give(
            address,
            PROCESS.allocate_in_order(bytes as u64, pool, stream),
        )
    }
}

fn ending(stream: usize, driver: impl FnOnce() -> Code) -> Code {
    match is_in_use() {
        true => PROCESS.end_stream(Stream(stream), driver),
        false => driver(),
    }
}

/// `free` returns `None` for memory that the driver has allocated.
fn freeing(
    address: u64,
    free: impl FnOnce() -> Option<Code>,
    driver: impl FnOnce() -> Code,
) -> Code {
    let freed = is_in_use().then(free).flatten();
    freed.unwrap_or_else(|| forgetting(address, driver()))
}

pub(super) fn own_default(stream: usize) -> Stream {
    match stream {
        0 => PER_THREAD,
        stream => Stream(stream),
    }
}

fn allocate(address: *mut u64, bytes: u64) -> Code {
    // SAFETY: the caller passes valid arguments, and it is not null.
    unsafe { give(address, PROCESS.allocate(bytes)) }
}

pub(super) unsafe fn give(address: *mut u64, allocated: Result<u64, Code>) -> Code {
    match allocated {
        Ok(allocated) => {
            // SAFETY: the caller passes valid arguments.
            unsafe { *address = allocated };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// Memory of the calling thread's context. `driver` writes to `key` the handle with which the memory is freed.
/// The driver itself refuses to allocate nothing.
pub(super) fn fixed(key: *const u64, bytes: u64, driver: impl Fn() -> Code) -> Code {
    let context = driver::current_context().map(|context| PROCESS.contexts.owner(context));
    fixed_with(key, bytes, context, driver)
}

pub(super) fn fixed_with(
    key: *const u64,
    bytes: u64,
    context: Option<Context>,
    driver: impl Fn() -> Code,
) -> Code {
    if !is_in_use() || key.is_null() || bytes == 0 {
        return driver();
    }
    room::make_fixed(&PROCESS, bytes, context, || match driver() {
        // SAFETY: the driver has just written there.
        SUCCESS => Ok(unsafe { *key }),
        code => Err(code),
    })
}

pub(super) fn forgetting(key: u64, code: Code) -> Code {
    if code == SUCCESS && is_in_use() {
        PROCESS.forget_fixed(key);
    }
    code
}

pub(super) fn refusing(address: u64, what: &'static str, driver: impl FnOnce() -> Code) -> Code {
    match find(address) {
        Some(_) => refuse(what),
        None => driver(),
    }
}

/// Libraries probe, so the reason is printed once.
pub(super) fn refuse(what: &'static str) -> Code {
    static PRINTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if !(PRINTED.lock().unwrap_or_else(PoisonError::into_inner)).insert(what) {
        return NOT_SUPPORTED;
    }
    eprintln!(
        "Baton: memory of a shared GPU cannot be {what}, because it moves between the GPU and the host"
    );
    NOT_SUPPORTED
}

pub(super) fn find(address: u64) -> Option<super::super::heap::Range> {
    is_in_use().then(|| PROCESS.memory().find(address))?
}

/// Narrows what the driver answers about a whole region to the one allocation. An allocation also has a context, and
/// for the driver mapped memory has none.
fn correct(value: *mut c_void, attribute: c_int, address: u64) {
    const CONTEXT: c_int = 1;
    const RANGE_START: c_int = 11;
    const RANGE_BYTES: c_int = 12;
    let Some(range) = find(address).filter(|_| !value.is_null()) else {
        return;
    };
    let context = || PROCESS.memory().context_of(range.address);
    // SAFETY: the driver has just written a number of this width there.
    unsafe {
        match attribute {
            CONTEXT => {
                if let Some(context) = context() {
                    *value.cast::<usize>() = context.0;
                }
            }
            RANGE_START => *value.cast::<u64>() = range.address,
            RANGE_BYTES => *value.cast::<usize>() = range.bytes as usize,
            _ => {}
        }
    }
}

/// The beginning of the description of memory from another interface: its kind, a handle and its size.
#[repr(C)]
pub(super) struct ExternalDescription {
    pub(super) _kind: c_int,
    pub(super) _handle: [usize; 2],
    pub(super) bytes: u64,
}

/// Describes an array, as the driver defines it.
#[repr(C)]
pub(super) struct ArrayDescription {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) format: c_int,
    pub(super) channels: u32,
}

#[repr(C)]
pub(super) struct Array3dDescription {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
    pub(super) format: c_int,
    pub(super) channels: u32,
    pub(super) flags: u32,
}

impl ArrayDescription {
    fn bytes(&self) -> u64 {
        (self.width * self.height.max(1)) as u64 * element_bytes(self.format, self.channels)
    }
}

impl Array3dDescription {
    fn bytes(&self) -> u64 {
        let elements = self.width * self.height.max(1) * self.depth.max(1);
        elements as u64 * element_bytes(self.format, self.channels)
    }
}

/// Unknown formats have at most 4 bytes in each channel.
fn element_bytes(format: c_int, channels: u32) -> u64 {
    let each = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    each * u64::from(channels)
}
