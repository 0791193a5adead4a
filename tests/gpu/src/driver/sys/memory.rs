//! Allocations, copies and sets.

use super::{
    ANONYMOUS, PRIVATE, READ_WRITE, api, bound, mapping::MAPPED, mmap, munmap, pinned::is_pinned,
    put,
    streams::{GRAPH_BYTES, last_of},
};
use crate::{
    CAPTURE_UNSUPPORTED, Code, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS,
    card::card,
    engine::{self, Work},
    host, lock, objects, spoils_captures, submit,
};
use std::{
    collections::BTreeMap,
    ffi::{c_int, c_uint, c_void},
    ptr::null_mut,
    sync::{Mutex, atomic::Ordering::SeqCst},
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Device,
    Managed,
    Host,
    /// Memory that was allocated in a capture; it is part of the graph.
    Graph,
}

impl Place {
    fn takes_memory(self) -> bool {
        matches!(self, Self::Device | Self::Managed)
    }
}

/// The size and the place of each allocation, by address.
static ALLOCATIONS: Mutex<BTreeMap<u64, (usize, Place)>> = Mutex::new(BTreeMap::new());
static HOST: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

unsafe fn pages(bytes: usize) -> Option<u64> {
    let memory = unsafe { mmap(null_mut(), bytes, READ_WRITE, PRIVATE | ANONYMOUS, -1, 0) };
    (memory as isize != -1).then_some(memory as u64)
}

pub(crate) unsafe fn allocate(address: *mut u64, bytes: usize, place: Place) -> Code {
    if bytes == 0 || address.is_null() {
        return INVALID_VALUE;
    }
    if place.takes_memory() && !card().take(bytes as u64) {
        return OUT_OF_MEMORY;
    }
    let Some(pages) = (unsafe { pages(bytes) }) else {
        return OUT_OF_MEMORY;
    };
    lock(&ALLOCATIONS).insert(pages, (bytes, place));
    unsafe { put(address, pages) }
}

unsafe fn free(address: u64) -> Code {
    if address == 0 {
        return SUCCESS;
    }
    let Some((bytes, place)) = lock(&ALLOCATIONS).remove(&address) else {
        return INVALID_VALUE;
    };
    if place == Place::Graph {
        return SUCCESS;
    }
    engine::wait_for(engine::submitted());
    unsafe { munmap(address as *mut c_void, bytes) };
    if place.takes_memory() {
        card().give(bytes as u64);
    }
    SUCCESS
}

/// The allocation or mapping that contains the address.
fn find(address: u64) -> Option<(u64, usize, Place)> {
    let own = lock(&ALLOCATIONS)
        .range(..=address)
        .next_back()
        .map(|(start, (bytes, place))| (*start, *bytes, *place));
    let mapped = lock(&MAPPED)
        .range(..=address)
        .next_back()
        .map(|(start, (bytes, _))| (*start, *bytes, Place::Device));
    let host = lock(&HOST)
        .range(..=address)
        .next_back()
        .map(|(start, bytes)| (*start, *bytes, Place::Host));
    [own, mapped, host]
        .into_iter()
        .flatten()
        .find(|(start, bytes, _)| address < start + *bytes as u64)
}

fn copy_now(to: u64, from: u64, bytes: usize) -> Code {
    let code = submit(0, Work::Copy { to, from, bytes });
    engine::wait_for(engine::submitted());
    code
}

pub(crate) fn is_known(address: u64) -> bool {
    find(address).is_some()
}

/// The graph's memory takes the card's once it is instantiated.
pub(crate) unsafe fn allocate_in_graph(address: *mut u64, bytes: usize) -> Code {
    unsafe { allocate(address, bytes, Place::Graph) }
}

/// Whether the GPU cannot read or write the memory at this address directly.
fn is_pageable(address: u64) -> bool {
    !is_known(address) && !is_pinned(address)
}

/// As NVIDIA documents for copies in the order of a stream ("API synchronization behavior"): data in pageable memory
/// is copied before the call returns, and a copy to pageable memory has ended when the call returns. Graphs copy at
/// launch.
fn copy_in_order(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    let copy = Work::Copy { to, from, bytes };
    if objects().capture_of(stream).is_some() {
        return submit(stream, copy);
    }
    let code = match is_pageable(from) {
        true => submit(
            stream,
            Work::Fill {
                to,
                value: host::read(from, bytes),
                count: 1,
            },
        ),
        false => submit(stream, copy),
    };
    if code == SUCCESS && is_pageable(to) {
        engine::wait_for(last_of(stream).unwrap_or(0));
    }
    code
}

fn fill(stream: usize, to: u64, value: &[u8], count: usize) -> Code {
    submit(
        stream,
        Work::Fill {
            to,
            value: value.to_vec(),
            count,
        },
    )
}

bound! {
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        if spoils_captures(false) { CAPTURE_UNSUPPORTED } else { allocate(address, bytes, Place::Device) }
    }

    fn cuMemAllocManaged(address: *mut u64, bytes: usize, _flags: c_uint) {
        allocate(address, bytes, Place::Managed)
    }

    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) {
        let mut objects = objects();
        let Some(origin) = objects.capture_of(stream) else {
            drop(objects);
            return allocate(address, bytes, Place::Device);
        };
        objects.captures.entry(origin).or_default().nodes.bytes += bytes as u64;
        allocate_in_graph(address, bytes)
    }

}

api! {
    fn cuDeviceGetGraphMemAttribute(_device: c_int, attribute: c_int, value: *mut u64) {
        // Used and reserved, now and at most.
        if (0..4).contains(&attribute) { put(value, GRAPH_BYTES.load(SeqCst)) } else { INVALID_VALUE }
    }

    fn cuMemFree_v2(address: u64) { free(address) }

    // A version that programs can look up and the interposer does not know.
    fn cuMemFree_v9(address: u64) { free(address) }

    fn cuMemFreeAsync(address: u64, _stream: usize) { free(address) }

    fn cuArrayCreate_v2(array: *mut u64, description: *const [usize; 2]) {
        let [width, height] = *description;
        allocate(array, width * height.max(1) * 4, Place::Device)
    }

    fn cuArrayDestroy(array: u64) { free(array) }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        if !free.is_null() {
            put(free, card().free_bytes() as usize);
        }
        if !total.is_null() {
            put(total, card().total_bytes() as usize);
        }
        SUCCESS
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) {
        let Some((start, length, _)) = find(address) else { return INVALID_VALUE };
        if !base.is_null() {
            put(base, start);
        }
        if !bytes.is_null() {
            put(bytes, length);
        }
        SUCCESS
    }

    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) {
        let Some((start, bytes, place)) = find(address) else { return INVALID_VALUE };
        match attribute {
            // The context. Mapped memory belongs to none.
            1 => put(value.cast::<usize>(), 0),
            // The memory type: host or device.
            2 => put(value.cast::<c_uint>(), if place == Place::Host { 1 } else { 2 }),
            3 => put(value.cast::<u64>(), address),
            9 => put(value.cast::<c_int>(), 0),
            11 => put(value.cast::<u64>(), start),
            12 => put(value.cast::<usize>(), bytes),
            _ => INVALID_VALUE,
        }
    }

    // "Pointer to a memory region allocated using CUDA memory allocation APIs" (driver API, "Unified Addressing").
    fn cuPointerSetAttribute(_value: *const c_void, _attribute: c_int, address: u64) {
        if is_known(address) { SUCCESS } else { INVALID_VALUE }
    }

    fn cuIpcGetMemHandle(_handle: *mut c_void, _address: u64) { NOT_SUPPORTED }

    // The memory is that of another interface, so it is not the card's.
    fn cuImportExternalMemory(memory: *mut usize, _description: *const c_void) { put(memory, objects().number()) }

    fn cuDestroyExternalMemory(_memory: usize) { SUCCESS }

    // ---- host memory

    fn cuMemHostAlloc(address: *mut u64, bytes: usize, _flags: c_uint) {
        let Some(pages) = pages(bytes) else { return OUT_OF_MEMORY };
        // Pinned pages exist (cudaHostAlloc: allocates memory that is page-locked).
        host::fill(pages, &[0], bytes);
        lock(&HOST).insert(pages, bytes);
        put(address, pages)
    }

    fn cuMemFreeHost(address: u64) {
        let Some(bytes) = lock(&HOST).remove(&address) else { return INVALID_VALUE };
        munmap(address as *mut c_void, bytes);
        SUCCESS
    }

}

bound! {
    // ---- copies and sets

    fn cuMemcpy(to: u64, from: u64, bytes: usize) { copy_now(to, from, bytes) }

    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) { copy_now(to, from, bytes) }

    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) { copy_now(to, from, bytes) }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) { copy_now(to, from, bytes) }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) { copy_in_order(to, from, bytes, stream) }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_in_order(to, from, bytes, stream)
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_in_order(to, from, bytes, stream)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        submit(stream, Work::Copy { to, from, bytes })
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(0, to, &[value], count);
        engine::wait_for(engine::submitted());
        SUCCESS
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(0, to, &value.to_ne_bytes(), count);
        engine::wait_for(engine::submitted());
        SUCCESS
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        if count == 0 { SUCCESS } else { fill(stream, to, &[value], count) }
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) {
        fill(stream, to, &value.to_ne_bytes(), count)
    }
}
