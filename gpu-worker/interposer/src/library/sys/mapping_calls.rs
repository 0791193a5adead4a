//! Wrappers of the calls for memory that the program creates without an address, and maps itself.
//!
//! Ordinary memory of the GPU becomes a piece, which can leave the GPU. The rest is allocated by the driver and counted.
#![allow(non_snake_case)]

use super::{
    super::{
        PROCESS,
        heap::{GRANULE_BYTES, Range},
        memory::{Pieces, Regions, is_handle},
    },
    driver::{
        Access, Code, DEINITIALIZED, Export, INVALID_VALUE, Location, NOT_FOUND, NOT_SUPPORTED,
        ONLY_DEVICE, Properties, SUCCESS, current_context, has_primary_context,
    },
    is_in_use,
    memory_calls::{find, fixed_with, forgetting, give, is_ours, refuse, refusing},
    wrap,
};
use std::{
    ffi::{c_int, c_void},
    mem::transmute,
    slice,
};

wrap! {
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) |driver| {
        // SAFETY: the caller passes valid arguments.
        match unsafe { properties.as_ref() } {
            Some(properties) if properties.location.is_host() => driver(),
            Some(properties) if is_ours(handle.is_null() || flags != 0) && can_be_piece(bytes, properties) => {
                if properties.is_for_fabric() {
                    // Libraries probe this, and go on without.
                    return NOT_SUPPORTED;
                }
                // SAFETY: the caller passes valid arguments, and it is not null.
                unsafe { give(handle, PROCESS.create_piece(bytes as u64, *properties)) }
            }
            // It belongs to no context.
            _ => fixed_with(handle, bytes as u64, None, driver),
        }
    }

    fn cuMemAddressFree(address: u64, bytes: usize) |driver| {
        let code = driver();
        if code == SUCCESS && has_views(address, bytes) {
            PROCESS.pieces(|pieces, regions| pieces.forget_views_in(regions, range(address, bytes)));
        }
        code
    }

    fn cuMemRelease(handle: u64) |driver| {
        match is_handle(handle) {
            true => on_piece(|| PROCESS.pieces(|pieces, _| pieces.release(handle))),
            false => forgetting(handle, driver()),
        }
    }

    fn cuMemMap(address: u64, bytes: usize, from: usize, handle: u64, flags: u64) |driver| {
        match is_handle(handle) {
            true if from != 0 || flags != 0 => INVALID_VALUE,
            true => on_piece(|| PROCESS.pieces(|pieces, regions| pieces.map(regions, handle, range(address, bytes)))),
            false => driver(),
        }
    }

    fn cuMemUnmap(address: u64, bytes: usize) |driver| {
        match has_views(address, bytes) {
            true => on_piece(|| PROCESS.pieces(|pieces, regions| pieces.unmap(regions, range(address, bytes)))),
            false => driver(),
        }
    }

    fn cuMemSetAccess(address: u64, bytes: usize, access: *const Access, count: usize) |driver| {
        if access.is_null() || count == 0 || !has_views(address, bytes) {
            return driver();
        }
        // SAFETY: the caller passes valid arguments.
        let access = unsafe { slice::from_raw_parts(access, count) };
        let permit = || {
            let permit = |pieces: &mut Pieces, regions: &mut Regions| {
                pieces.permit(regions, range(address, bytes), access)
            };
            on_piece(|| PROCESS.pieces(permit))
        };
        match access.iter().all(Access::is_ordinary) {
            true => permit(),
            // The driver must decide, and it can do that only for memory that is on the GPU.
            false => PROCESS.ask(permit),
        }
    }

    fn cuMemGetAccess(flags: *mut u64, location: *const Location, address: u64) |driver| {
        let _ = (flags, location);
        match find(address) {
            // The driver knows only memory that is on the GPU.
            Some(_) => PROCESS.ask(driver),
            None => driver(),
        }
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: *mut Properties, handle: u64) |driver| {
        if !is_handle(handle) || properties.is_null() {
            return driver();
        }
        on_piece(|| {
            put(properties, PROCESS.pieces(|pieces, _| pieces.properties(handle))?);
            Ok(())
        })
    }

    fn cuMemRetainAllocationHandle(handle: *mut u64, address: u64) |driver| {
        if !handle.is_null()
            && is_in_use()
            && let Some(held) = PROCESS.pieces(|pieces, regions| pieces.hold_at(regions, address))
        {
            return put(handle, held);
        }
        refusing(address, "mapped a second time (cuMemRetainAllocationHandle)", driver)
    }

    // ---- what would prevent it from moving

    fn cuMemExportToShareableHandle(shared: *mut c_void, handle: u64, kind: c_int, flags: u64) |driver| {
        let _ = (shared, kind, flags);
        refusing_piece(handle, "shared with another process (cuMemExportToShareableHandle)", driver)
    }

    fn cuMulticastBindMem(cast: u64, at: usize, handle: u64, from: usize, bytes: usize, flags: u64) |driver| {
        let _ = (cast, at, from, bytes, flags);
        refusing_piece(handle, "bound to several GPUs (cuMulticastBindMem)", driver)
    }

    fn cuMulticastBindMem_v2(
        cast: u64, device: c_int, at: usize, handle: u64, from: usize, bytes: usize, flags: u64
    ) |driver| {
        let _ = (cast, device, at, from, bytes, flags);
        refusing_piece(handle, "bound to several GPUs (cuMulticastBindMem)", driver)
    }

    fn cuLogicalEndpointBindMem(
        endpoint: u64, device: c_int, at: u64, handle: u64, from: u64, bytes: u64, flags: u64
    ) |driver| {
        let _ = (endpoint, device, at, from, bytes, flags);
        refusing_piece(handle, "bound to a logical endpoint (cuLogicalEndpointBindMem)", driver)
    }
}

/// The driver answers calls that make no sense, and allocates memory of other kinds.
fn can_be_piece(bytes: usize, properties: &Properties) -> bool {
    bytes > 0
        && (bytes as u64).is_multiple_of(GRANULE_BYTES)
        && properties.is_ordinary()
        && (current_context().is_some() || has_primary_context(ONLY_DEVICE))
}

/// Pieces of a process that exits are gone, and the driver does not know them.
fn on_piece(act: impl FnOnce() -> Result<(), Code>) -> Code {
    match is_in_use() {
        true => act().err().unwrap_or(SUCCESS),
        false => DEINITIALIZED,
    }
}

const fn range(address: u64, bytes: usize) -> Range {
    Range {
        address,
        bytes: bytes as u64,
    }
}

fn has_views(address: u64, bytes: usize) -> bool {
    is_in_use() && PROCESS.memory().has_views_in(range(address, bytes))
}

fn put<T>(place: *mut T, value: T) -> Code {
    // SAFETY: the caller passes valid arguments, and it is not null.
    unsafe { place.write(value) };
    SUCCESS
}

fn refusing_piece(handle: u64, what: &'static str, driver: impl FnOnce() -> Code) -> Code {
    match is_handle(handle) {
        true => refuse(what),
        false => driver(),
    }
}
