//! Access by address.

use std::{
    ffi::{c_int, c_long, c_void},
    fs::File,
    io,
    os::fd::AsRawFd as _,
    ptr::null_mut,
    sync::atomic::AtomicU64,
};

unsafe extern "C" {
    pub(crate) fn mmap(
        at: *mut c_void,
        bytes: usize,
        access: c_int,
        flags: c_int,
        file: c_int,
        from: c_long,
    ) -> *mut c_void;
}

pub(crate) const READ_WRITE: c_int = 1 | 2;
pub(crate) const SHARED: c_int = 1;

pub(crate) fn map_numbers(file: &File) -> io::Result<&'static [AtomicU64]> {
    const BYTES: usize = 4096;
    let memory = unsafe { mmap(null_mut(), BYTES, READ_WRITE, SHARED, file.as_raw_fd(), 0) };
    if memory as isize == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(unsafe { std::slice::from_raw_parts(memory.cast(), BYTES / 8) })
}

pub(crate) fn copy(to: u64, from: u64, bytes: usize) {
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

pub(crate) fn read(from: u64, bytes: usize) -> Vec<u8> {
    unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec()
}

pub(crate) fn fill(to: u64, value: &[u8], count: usize) {
    for index in 0..count {
        unsafe {
            std::ptr::copy_nonoverlapping(
                value.as_ptr(),
                (to as *mut u8).add(index * value.len()),
                value.len(),
            )
        };
    }
}

pub(crate) fn add(to: u64, count: u64, value: u64) {
    for index in 0..count as usize {
        unsafe {
            let number = (to as *mut u64).add(index);
            *number = (*number).wrapping_add(value);
        }
    }
}

/// The number at an address that other threads write to.
pub(crate) fn number_at(address: u64) -> u64 {
    unsafe { (address as *const u64).read_volatile() }
}

pub(crate) fn call(function: HostFunction, data: usize) {
    unsafe { function(data as *mut c_void) };
}

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);
