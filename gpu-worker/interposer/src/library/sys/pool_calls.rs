//! Wrappers of the calls that create and find pools, and of allocations from a pool that a program names.
#![allow(non_snake_case)]

use super::{
    super::{PROCESS, pools::Place},
    driver::{Code, Export, NOT_FOUND, ON_DEVICE, PINNED, SUCCESS, Stream},
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
        if code == SUCCESS {
            // SAFETY: the driver has just read `properties` and written `pool`.
            unsafe { PROCESS.pools.insert(*pool, (*properties).place()) };
        }
        code
    }

    fn cuMemPoolDestroy(pool: usize) |driver| {
        PROCESS.pools.remove(pool);
        driver()
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut c_void) |driver| {
        let code = driver();
        if code == SUCCESS && let Some(bytes) = bytes_of(pool, attribute) {
            // SAFETY: the driver has just written a number of bytes there.
            unsafe { *value.cast::<u64>() += bytes };
        }
        code
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) |driver| {
        let _ = value;
        let code = driver();
        if code == SUCCESS && matches!(attribute, MOST_RESERVED | MOST_USED) {
            PROCESS.pools.reset_most(pool);
        }
        code
    }

    fn cuMemPoolImportFromShareableHandle(
        pool: *mut usize, handle: *mut c_void, kind: c_int, flags: u64
    ) |driver| {
        let _ = (handle, kind, flags);
        found(pool, Place::Fixed, driver)
    }

    fn cuMemGetDefaultMemPool(pool: *mut usize, location: *const [c_int; 2], kind: c_int) |driver| {
        found(pool, place_at(location, kind), driver)
    }

    fn cuMemGetMemPool(pool: *mut usize, location: *const [c_int; 2], kind: c_int) |driver| {
        found(pool, place_at(location, kind), driver)
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
    fn place(&self) -> Place {
        match place(self.kind, self.location[0]) {
            Place::Movable if self.handle_types != 0 || self.usage != 0 => Place::Fixed,
            place => place,
        }
    }
}

fn place(kind: c_int, location: c_int) -> Place {
    match (kind, location) {
        (PINNED, ON_DEVICE) => Place::Movable,
        (PINNED, _) => Place::Host,
        _ => Place::Fixed,
    }
}

fn place_at(location: *const [c_int; 2], kind: c_int) -> Place {
    // SAFETY: the caller passes valid arguments.
    unsafe { location.as_ref() }.map_or(Place::Movable, |location| place(kind, location[0]))
}

/// A pool that the program created with other properties keeps its recorded place.
fn found(pool: *const usize, place: Place, driver: impl FnOnce() -> Code) -> Code {
    let code = driver();
    if code == SUCCESS && place != Place::Movable {
        // SAFETY: the driver has just written there.
        unsafe { PROCESS.pools.insert(*pool, place) };
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
    match PROCESS.pools.place_of(pool) {
        Place::Movable => allocate_in_order(address, bytes, pool, stream, driver),
        // Memory that is allocated in a capture belongs to the graph.
        Place::Fixed if !PROCESS.captures.has(stream) => fixed(address, bytes as u64, driver),
        Place::Fixed | Place::Host => driver(),
    }
}
