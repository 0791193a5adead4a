//! Functions that NVIDIA's libraries call and Baton's own test programs do not: properties, limits, occupancy,
//! and code in fat binaries. Kernels of these libraries compute nothing; copies, sets, streams and memory are
//! real.

use super::{
    api,
    contexts::{cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2},
    memory::{cuMemAlloc_v2, cuMemHostAlloc, cuPointerGetAttribute},
    put,
    streams::{
        cuEventRecord, cuGraphInstantiateWithFlags, cuLaunchKernel, cuLaunchKernel_ptsz,
        cuStreamCreate, cuStreamIsCapturing, cuStreamSynchronize, mark_of,
    },
};
use crate::{
    INVALID_HANDLE, INVALID_VALUE, LIBRARY, NOT_FOUND, NOT_READY, PRIMARY, SUCCESS, objects,
};
use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

const PCI_BUS: &[u8] = b"0000:01:00.0\0";
const PITCH: usize = 512;

api! {
    // ---- devices and contexts

    fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, _device: c_int) {
        let bytes = PCI_BUS.len().min(room as usize);
        std::ptr::copy_nonoverlapping(PCI_BUS.as_ptr(), text.cast(), bytes);
        SUCCESS
    }

    fn cuDeviceGetByPCIBusId(device: *mut c_int, _text: *const c_char) { put(device, 0) }

    fn cuDeviceGetProperties(properties: *mut [c_int; 10], _device: c_int) { put(properties, [0; 10]) }

    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, _device: c_int) {
        put(major, 7);
        put(minor, 0)
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, _device: c_int, _peer: c_int) { put(can, 0) }

    fn cuDevicePrimaryCtxSetFlags(_device: c_int, _flags: c_uint) { SUCCESS }

    fn cuDevicePrimaryCtxSetFlags_v2(_device: c_int, _flags: c_uint) { SUCCESS }

    fn cuDevicePrimaryCtxRelease(device: c_int) { cuDevicePrimaryCtxRelease_v2(device) }

    fn cuDevicePrimaryCtxReset(device: c_int) { cuDevicePrimaryCtxReset_v2(device) }

    fn cuCtxGetFlags(flags: *mut c_uint) { put(flags, 0) }

    fn cuCtxGetApiVersion(_context: usize, version: *mut c_uint) { put(version, 3020) }

    fn cuCtxGetLimit(value: *mut usize, _limit: c_int) { put(value, 1024) }

    fn cuCtxSetLimit(_limit: c_int, _value: usize) { SUCCESS }

    fn cuCtxGetCacheConfig(choice: *mut c_int) { put(choice, 0) }

    fn cuCtxSetCacheConfig(_choice: c_int) { SUCCESS }

    fn cuCtxGetSharedMemConfig(choice: *mut c_int) { put(choice, 1) }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        put(least, 0);
        put(greatest, -5)
    }

    fn cuCtxGetId(_context: usize, id: *mut u64) { put(id, 1) }

    fn cuProfilerStart() { SUCCESS }

    fn cuProfilerStop() { SUCCESS }

    // ---- code

    fn cuModuleLoadFatBinary(module: *mut usize, _image: *const c_void) { put(module, LIBRARY) }

    fn cuModuleLoadDataEx(
        module: *mut usize, _image: *const c_void, _count: c_uint, _options: *const c_int, _values: *const *const c_void,
    ) { put(module, LIBRARY) }

    // As large as the largest global in PyTorch.
    fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, _module: usize, _name: *const c_char) {
        static mut GLOBAL: [u64; 1 << 16] = [0; 1 << 16];
        if !bytes.is_null() {
            put(bytes, 8 << 16);
        }
        if address.is_null() { SUCCESS } else { put(address, (&raw mut GLOBAL) as u64) }
    }

    fn cuModuleGetTexRef(reference: *mut usize, _module: usize, _name: *const c_char) { put(reference, 0x600) }

    fn cuModuleGetSurfRef(reference: *mut usize, _module: usize, _name: *const c_char) { put(reference, 0x601) }

    fn cuModuleGetLoadingMode(mode: *mut c_int) { put(mode, 2) }

    fn cuLibraryLoadData(
        library: *mut usize, _image: *const c_void, _options: *const c_int, _values: *const *const c_void, _count: c_uint,
        _library_options: *const c_int, _library_values: *const *const c_void, _library_count: c_uint,
    ) { put(library, LIBRARY) }

    fn cuLibraryUnload(_library: usize) { SUCCESS }

    fn cuLibraryGetModule(module: *mut usize, _library: usize) { put(module, LIBRARY) }

    fn cuLibraryGetKernel(kernel: *mut usize, library: usize, name: *const c_char) {
        super::contexts::cuModuleGetFunction(kernel, library, name)
    }

    fn cuKernelGetFunction(function: *mut usize, kernel: usize) { put(function, kernel) }

    fn cuKernelGetAttribute(value: *mut c_int, attribute: c_int, _kernel: usize, _device: c_int) {
        put(value, of_function(attribute))
    }

    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, _function: usize) { put(value, of_function(attribute)) }

    fn cuFuncSetAttribute(_function: usize, _attribute: c_int, _value: c_int) { SUCCESS }

    fn cuFuncSetCacheConfig(_function: usize, _choice: c_int) { SUCCESS }

    fn cuFuncSetSharedMemConfig(_function: usize, _choice: c_int) { SUCCESS }

    fn cuFuncIsLoaded(is_loaded: *mut c_int, _function: usize) { put(is_loaded, 1) }

    fn cuFuncLoad(_function: usize) { SUCCESS }

    fn cuFuncGetModule(module: *mut usize, _function: usize) { put(module, LIBRARY) }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, _function: usize, _threads: c_int, _shared: usize,
    ) { put(blocks, 2) }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int, _function: usize, _threads: c_int, _shared: usize, _flags: c_uint,
    ) { put(blocks, 2) }

    fn cuLaunchCooperativeKernel(
        function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: usize, words: *const *const u64,
    ) { cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, words, std::ptr::null()) }

    fn cuLaunchCooperativeKernel_ptsz(
        function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: usize, words: *const *const u64,
    ) { cuLaunchKernel_ptsz(function, gx, gy, gz, bx, by, bz, shared, stream, words, std::ptr::null()) }

    // ---- memory

    fn cuMemAllocHost_v2(address: *mut u64, bytes: usize) { cuMemHostAlloc(address, bytes, 0) }

    fn cuMemHostGetDevicePointer_v2(address: *mut u64, host: u64, _flags: c_uint) { put(address, host) }

    // Portable, and at the same address on the device.
    fn cuMemHostGetFlags(flags: *mut c_uint, _host: u64) { put(flags, 3) }

    fn cuMemAllocPitch_v2(address: *mut u64, pitch: *mut usize, width: usize, height: usize, _element: c_uint) {
        let row = width.next_multiple_of(PITCH);
        put(pitch, row);
        cuMemAlloc_v2(address, row * height)
    }

    // For an unknown address each value is 0 (cuPointerGetAttributes), and the device is -2.
    fn cuPointerGetAttributes(count: c_uint, attributes: *const c_int, values: *const *mut c_void, address: u64) {
        const MEMORY_TYPE: c_int = 2;
        let mut kind = 0_u32;
        let is_known = cuPointerGetAttribute((&raw mut kind).cast(), MEMORY_TYPE, address) == SUCCESS;
        for index in 0..count as usize {
            let (attribute, value) = (*attributes.add(index), *values.add(index));
            std::ptr::write_bytes(value.cast::<u8>(), 0, width_of(attribute));
            match attribute {
                1 if is_known => { put(value.cast(), PRIMARY); }
                9 if !is_known => { put(value.cast(), -2_i32); }
                _ if is_known => { cuPointerGetAttribute(value, attribute, address); }
                _ => {}
            }
        }
        SUCCESS
    }

    fn cuMemPoolSetAttribute(_pool: usize, _attribute: c_int, _value: *const c_void) { SUCCESS }

    // The first three are booleans, the others numbers of bytes.
    fn cuMemPoolGetAttribute(_pool: usize, attribute: c_int, value: *mut c_void) {
        if attribute < 4 { put(value.cast::<c_int>(), 0) } else { put(value.cast::<u64>(), 0) }
    }

    fn cuMemPoolSetAccess(_pool: usize, _access: *const c_void, _count: usize) { SUCCESS }

    fn cuMemPoolGetAccess(flags: *mut c_int, _pool: usize, _location: *const c_int) { put(flags, 3) }

    fn cuMemPoolTrimTo(_pool: usize, _bytes: usize) { SUCCESS }

    fn cuMemSetMemPool(_location: *const c_int, _kind: c_int, _pool: usize) { SUCCESS }

    fn cuDeviceSetMemPool(_device: c_int, _pool: usize) { SUCCESS }

    // ---- streams, events and graphs

    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, _priority: c_int) { cuStreamCreate(stream, flags) }

    fn cuStreamGetPriority(_stream: usize, priority: *mut c_int) { put(priority, 0) }

    fn cuStreamGetFlags(_stream: usize, flags: *mut c_uint) { put(flags, 1) }

    fn cuStreamGetId(stream: usize, id: *mut u64) { put(id, stream as u64) }

    fn cuStreamGetCtx(_stream: usize, context: *mut usize) { put(context, PRIMARY) }

    fn cuStreamGetCaptureInfo(stream: usize, status: *mut c_int, id: *mut u64) {
        capture_info(stream, status, id, null_mut(), null_mut())
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: usize, status: *mut c_int, id: *mut u64, graph: *mut usize, _needed: *mut usize, count: *mut usize,
    ) { capture_info(stream, status, id, graph, count) }

    fn cuStreamGetCaptureInfo_v3(
        stream: usize, status: *mut c_int, id: *mut u64, graph: *mut usize, _needed: *mut usize, _edges: *mut usize,
        count: *mut usize,
    ) { capture_info(stream, status, id, graph, count) }

    // Both must have been recorded, and be reached.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        let (start, end) = match (mark_of(start), mark_of(end)) {
            (Ok(Some(start)), Ok(Some(end))) => (start, end),
            (Err(code), _) | (_, Err(code)) => return code,
            _ => return INVALID_HANDLE,
        };
        match (start.reached.get(), end.reached.get()) {
            (Some(start), Some(end)) => put(milliseconds, 1e3 * end.saturating_duration_since(*start).as_secs_f32()),
            _ => NOT_READY,
        }
    }

    fn cuEventRecordWithFlags(event: usize, stream: usize, _flags: c_uint) { cuEventRecord(event, stream) }

    fn cuStreamAddCallback(
        stream: usize, function: unsafe extern "C" fn(usize, c_int, *mut c_void), data: *mut c_void, _flags: c_uint,
    ) {
        let code = cuStreamSynchronize(stream);
        function(stream, code, data);
        code
    }

    fn cuGraphInstantiate(
        executable: *mut usize, graph: usize, _node: *mut usize, _log: *mut c_char, _room: usize,
    ) { cuGraphInstantiateWithFlags(executable, graph, 0) }

    fn cuGraphInstantiate_v2(
        executable: *mut usize, graph: usize, _node: *mut usize, _log: *mut c_char, _room: usize,
    ) { cuGraphInstantiateWithFlags(executable, graph, 0) }

    // The parameters begin with the flags.
    fn cuGraphInstantiateWithParams(executable: *mut usize, graph: usize, parameters: *const u64) {
        cuGraphInstantiateWithFlags(executable, graph, *parameters)
    }

    fn cuGraphUpload(_executable: usize, _stream: usize) { SUCCESS }

    // Objects that graphs keep alive live as long as the process.
    fn cuUserObjectCreate(
        object: *mut usize, _pointer: *mut c_void, _end: *const c_void, _count: c_uint, _flags: c_uint,
    ) { put(object, objects().number()) }

    fn cuUserObjectRetain(_object: usize, _count: c_uint) { SUCCESS }

    fn cuUserObjectRelease(_object: usize, _count: c_uint) { SUCCESS }

    fn cuGraphRetainUserObject(_graph: usize, _object: usize, _count: c_uint, _flags: c_uint) { SUCCESS }

    fn cuGraphReleaseUserObject(_graph: usize, _object: usize, _count: c_uint) { SUCCESS }

    fn cuGraphGetNodes(_graph: usize, _nodes: *mut usize, count: *mut usize) { put(count, 1) }
}

fn of_function(attribute: c_int) -> c_int {
    match attribute {
        // Threads in a block; registers; the architecture it was compiled for.
        0 => 1024,
        4 => 32,
        5 | 6 => 70,
        _ => 0,
    }
}

/// The size of a pointer attribute in bytes.
fn width_of(attribute: c_int) -> usize {
    match attribute {
        2 | 6 | 8 | 9 | 10 | 13..=16 | 18 | 19 => 4,
        5 => 16,
        _ => 8,
    }
}

/// Does not report the nodes so far.
unsafe fn capture_info(
    stream: usize,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut usize,
    count: *mut usize,
) -> crate::Code {
    let objects = objects();
    let capture = objects
        .capture_of(stream)
        .and_then(|origin| objects.captures.get(&origin));
    let number = capture.map_or(0, |capture| capture.graph);
    drop(objects);
    unsafe {
        put(id, number as u64);
        put(graph, number);
        put(count, 0);
        cuStreamIsCapturing(stream, status)
    }
}

/// Tables that cudart looks up by identifier instead of by name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(
    table: *mut *const c_void,
    id: *const [u8; 16],
) -> crate::Code {
    if table.is_null() || id.is_null() {
        return INVALID_VALUE;
    }
    let found = super::tables::find(unsafe { *id });
    unsafe { table.write(found.unwrap_or(std::ptr::null())) };
    if found.is_some() { SUCCESS } else { NOT_FOUND }
}
