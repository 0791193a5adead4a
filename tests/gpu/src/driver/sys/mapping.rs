//! Memory behind reserved addresses: each piece is a file in memory that is mapped at the program's address.
//! Addresses without memory are protected, so a program that accesses them crashes at once.

use super::{
    ANONYMOUS, FIXED, NO_ACCESS, NO_RESERVE, PRIVATE, READ_WRITE, SHARED, api, bound, close,
    ftruncate, memfd_create, mmap, mprotect, munmap, put,
};
use crate::{
    Code, ILLEGAL_ADDRESS, INVALID_DEVICE, INVALID_VALUE, OUT_OF_MEMORY, STICKY, SUCCESS, card::card, engine, lock,
};
use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    ptr::null_mut,
    sync::{Mutex, atomic::Ordering::SeqCst},
};

const ON_DEVICE: c_int = 1;

pub(crate) const GRANULE_BYTES: usize = 2 << 20;

#[derive(Clone, Copy)]
struct Piece {
    file: c_int,
    bytes: usize,
    /// How many handles and mappings keep it.
    holds: u32,
    is_on_card: bool,
}

/// By handle.
static PIECES: Mutex<BTreeMap<u64, Piece>> = Mutex::new(BTreeMap::new());

/// The size of each mapping and the handle of its piece, by address.
pub(crate) static MAPPED: Mutex<BTreeMap<u64, (usize, u64)>> = Mutex::new(BTreeMap::new());

fn hold(handle: u64) -> Option<Piece> {
    let mut pieces = lock(&PIECES);
    let piece = pieces.get_mut(&handle)?;
    piece.holds += 1;
    Some(*piece)
}

/// The handle of the piece behind an address.
fn mapped_at(address: u64) -> Option<u64> {
    let mapped = lock(&MAPPED);
    let (start, (bytes, handle)) = mapped.range(..=address).next_back()?;
    (address < start + *bytes as u64).then_some(*handle)
}

/// The last one returns the piece to the card.
fn release(handle: u64) -> Code {
    let mut pieces = lock(&PIECES);
    let Some(piece) = pieces.get_mut(&handle) else {
        return INVALID_VALUE;
    };
    piece.holds -= 1;
    if piece.holds == 0 {
        let Piece { file, bytes, is_on_card, .. } = *piece;
        pieces.remove(&handle);
        unsafe { close(file) };
        if is_on_card {
            card().give(bytes as u64);
        }
    }
    SUCCESS
}

api! {
    fn cuMemGetAllocationGranularity(bytes: *mut usize, _properties: *const c_void, _option: c_int) {
        put(bytes, GRANULE_BYTES)
    }

    fn cuMemAddressReserve(address: *mut u64, bytes: usize, _aligned: usize, _at: u64, _flags: u64) {
        if bytes == 0 || bytes % GRANULE_BYTES != 0 {
            return INVALID_VALUE;
        }
        let room = bytes + GRANULE_BYTES;
        let start = mmap(null_mut(), room, NO_ACCESS, PRIVATE | ANONYMOUS | NO_RESERVE, -1, 0);
        if start as isize == -1 {
            return OUT_OF_MEMORY;
        }
        let aligned = (start as usize).next_multiple_of(GRANULE_BYTES);
        let before = aligned - start as usize;
        if before > 0 {
            munmap(start, before);
        }
        munmap((aligned + bytes) as *mut c_void, GRANULE_BYTES - before);
        put(address, aligned as u64)
    }

    fn cuMemAddressFree(address: u64, bytes: usize) {
        munmap(address as *mut c_void, bytes);
        SUCCESS
    }

    fn cuMemRelease(handle: u64) {
        release(handle)
    }

    fn cuMemRetainAllocationHandle(handle: *mut u64, address: u64) {
        match mapped_at(address) {
            Some(piece) if hold(piece).is_some() => put(handle, piece),
            _ => INVALID_VALUE,
        }
    }

    fn cuMemGetAccess(flags: *mut u64, _location: *const c_void, address: u64) {
        const READ_WRITE: u64 = 3;
        match mapped_at(address) {
            Some(_) => put(flags, READ_WRITE),
            None => INVALID_VALUE,
        }
    }

    // The driver API's reference does not say that `cuMemUnmap` waits for the GPU ("Virtual Memory Management":
    // "Unmap the backing memory of a given address range"), so this does not. Work that still uses the addresses
    // fails with `CUDA_ERROR_ILLEGAL_ADDRESS` ("Data types used by CUDA driver": "the device encountered a load or
    // store instruction on an invalid memory address").
    fn cuMemUnmap(address: u64, bytes: usize) {
        if engine::uses(address, bytes as u64) {
            STICKY.store(ILLEGAL_ADDRESS, SeqCst);
        }
        if let Some((_, handle)) = lock(&MAPPED).remove(&address) {
            release(handle);
        }
        let flags = PRIVATE | ANONYMOUS | NO_RESERVE | FIXED;
        if mmap(address as *mut c_void, bytes, NO_ACCESS, flags, -1, 0) as isize == -1 {
            return INVALID_VALUE;
        }
        SUCCESS
    }
}

// The documentation does not say that these need a context, but a strict driver could require one.
bound! {
    // Properties begin as those of pools. "To create a CPU allocation that doesn't target any specific NUMA nodes,
    // applications must set CUmemAllocationProp.CUmemLocation.type to CU_MEM_LOCATION_TYPE_HOST" (`cuMemCreate`).
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const [c_int; 4], _flags: u64) {
        if properties.is_null() || bytes == 0 || bytes % GRANULE_BYTES != 0 {
            return INVALID_VALUE;
        }
        let is_on_card = (*properties)[2] == ON_DEVICE;
        if is_on_card && !card().take(bytes as u64) {
            return OUT_OF_MEMORY;
        }
        let file = memfd_create(c"gpu".as_ptr(), 1);
        if file < 0 || ftruncate(file, bytes as i64) != 0 {
            if is_on_card {
                card().give(bytes as u64);
            }
            return OUT_OF_MEMORY;
        }
        let number = crate::objects().number() as u64;
        lock(&PIECES).insert(number, Piece { file, bytes, holds: 1, is_on_card });
        put(handle, number)
    }

    // "the offset … must be zero" and "size … must be … the allocation's" are what NVIDIA's own Python package for the
    // driver relies on (cuda.core, `VirtualMemoryResource`).
    fn cuMemMap(address: u64, bytes: usize, from: usize, handle: u64, _flags: u64) {
        let is_free = lock(&MAPPED).range(address..address + bytes as u64).next().is_none();
        if !is_free || mapped_at(address).is_some() || from != 0 || !(address as usize).is_multiple_of(GRANULE_BYTES) {
            return INVALID_VALUE;
        }
        let Some(piece) = hold(handle) else { return INVALID_VALUE };
        if piece.bytes != bytes {
            release(handle);
            return INVALID_VALUE;
        }
        let at = address as *mut c_void;
        if mmap(at, bytes, NO_ACCESS, SHARED | FIXED, piece.file, from as i64) as isize == -1 {
            release(handle);
            return INVALID_VALUE;
        }
        lock(&MAPPED).insert(address, (bytes, handle));
        SUCCESS
    }

    fn cuMemSetAccess(address: u64, bytes: usize, access: *const [c_int; 3], count: usize) {
        let places = std::slice::from_raw_parts(access, count);
        if places.iter().any(|[kind, id, _]| (*kind, *id) != (ON_DEVICE, 0)) {
            return INVALID_DEVICE;
        }
        if mprotect(address as *mut c_void, bytes, READ_WRITE) == 0 { SUCCESS } else { INVALID_VALUE }
    }
}
