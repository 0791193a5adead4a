//! Wrappers of the calls that create and find pools, and of allocations from a pool that a program names.
#![allow(non_snake_case)]

use super::{
    super::{PROCESS, pools::Residency},
    driver::{Code, Export, NOT_FOUND, ON_DEVICE, PINNED, SUCCESS, Stream},
    is_in_use,
    memory_calls::{allocate_in_order, fixed, own_default},
    wrap,
};
use std::{
    ffi::{c_int, c_void},
    mem::transmute,
};

wrap! {
    fn cuMemPoolCreate(pool: *mut usize, properties: *const PoolProperties) |driver| {
        let code = driver();
        if code == SUCCESS && is_in_use() {
            // SAFETY: the driver has just read `properties` and written `pool`.
            unsafe { PROCESS.pools.insert(*pool, (*properties).residency()) };
        }
        code
    }

    fn cuMemPoolDestroy(pool: usize) |driver| {
        if is_in_use() {
            PROCESS.pools.remove(pool);
        }
        driver()
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut c_void) |driver| {
        let code = driver();
        if code == SUCCESS && is_in_use() && let Some(bytes) = bytes_of(pool, attribute) {
            // SAFETY: the driver has just written a number of bytes there.
            unsafe { *value.cast::<u64>() += bytes };
        }
        code
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) |driver| {
        let _ = value;
        let code = driver();
        if code == SUCCESS && is_in_use() && matches!(attribute, MOST_RESERVED | MOST_USED) {
            PROCESS.pools.reset_most(pool);
        }
        code
    }

    fn cuMemPoolImportFromShareableHandle(
        pool: *mut usize, handle: *mut c_void, kind: c_int, flags: u64
    ) |driver| {
        let _ = (handle, kind, flags);
        found(pool, Residency::Fixed, driver)
    }

    fn cuMemGetDefaultMemPool(pool: *mut usize, location: *const [c_int; 2], kind: c_int) |driver| {
        found(pool, residency_at(location, kind), driver)
    }

    fn cuMemGetMemPool(pool: *mut usize, location: *const [c_int; 2], kind: c_int) |driver| {
        found(pool, residency_at(location, kind), driver)
    }

    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: usize, stream: usize) |driver| {
        allocate_from(pool, Stream(stream), address, bytes, driver)
    }

    fn cuMemAllocFromPoolAsync_ptsz(address: *mut u64, bytes: usize, pool: usize, stream: usize) |driver| {
        allocate_from(pool, own_default(stream), address, bytes, driver)
    }
}

const RESERVED: c_int = 5;
const MOST_RESERVED: c_int = 6;
const USED: c_int = 7;
const MOST_USED: c_int = 8;

/// What the driver does not count in a pool's attribute. Freed memory is not reserved for the pool, because all
/// allocations may use it.
fn bytes_of(pool: usize, attribute: c_int) -> Option<u64> {
    match attribute {
        RESERVED | USED => Some(PROCESS.pools.used(pool).now),
        MOST_RESERVED | MOST_USED => Some(PROCESS.pools.used(pool).most),
        _ => None,
    }
}

/// The beginning of a pool's properties, as the driver defines them.
#[repr(C)]
pub(super) struct PoolProperties {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: [c_int; 2],
    pub(super) _windows: *mut c_void,
    pub(super) _most_bytes: usize,
    pub(super) usage: u16,
}

impl PoolProperties {
    fn residency(&self) -> Residency {
        match residency(self.kind, self.location[0]) {
            Residency::Movable if self.handle_types != 0 || self.usage != 0 => Residency::Fixed,
            residency => residency,
        }
    }
}

fn residency(kind: c_int, location: c_int) -> Residency {
    match (kind, location) {
        (PINNED, ON_DEVICE) => Residency::Movable,
        (PINNED, _) => Residency::Host,
        _ => Residency::Fixed,
    }
}

fn residency_at(location: *const [c_int; 2], kind: c_int) -> Residency {
    // SAFETY: the caller passes valid arguments.
    unsafe { location.as_ref() }.map_or(Residency::Movable, |location| residency(kind, location[0]))
}

/// A pool that the program created with other properties keeps its recorded residency.
fn found(pool: *const usize, residency: Residency, driver: impl FnOnce() -> Code) -> Code {
    let code = driver();
    if code == SUCCESS && is_in_use() && residency != Residency::Movable {
        // SAFETY: the driver has just written there.
        unsafe { PROCESS.pools.insert(*pool, residency) };
    }
    code
}

fn allocate_from(
    pool: usize,
    stream: Stream,
    address: *mut u64,
    bytes: usize,
    driver: impl Fn() -> Code,
) -> Code {
    if !is_in_use() {
        return driver();
    }
    match PROCESS.pools.residency_of(pool) {
        Residency::Movable => allocate_in_order(address, bytes, Some(pool), stream, driver),
        // Memory that is allocated in a capture belongs to the graph.
        Residency::Fixed if !PROCESS.captures.has(stream) => fixed(address, bytes as u64, driver),
        Residency::Fixed | Residency::Host => driver(),
    }
}
