//! Reads the memory of a thread whose system call waits.

use nix::{
    libc,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};
use std::io::IoSliceMut;

/// The text at this address, up to its terminating zero. `None` if it cannot be read or is too long for a path.
pub(crate) fn read_text(thread: i32, address: u64) -> Option<Vec<u8>> {
    const PAGE: u64 = 4096;
    let mut text = Vec::new();
    let mut address = address;
    while text.len() < libc::PATH_MAX as usize {
        // Reads only to the end of the page, because the next one may not be mapped.
        let bytes = read_memory(thread, address, PAGE - address % PAGE);
        if bytes.is_empty() {
            return None;
        }
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&bytes[..end]);
            return Some(text);
        }
        address += bytes.len() as u64;
        text.extend_from_slice(&bytes);
    }
    None
}

/// At most `count` bytes at this address: as many as can be read, possibly none.
pub(crate) fn read_memory(thread: i32, address: u64, count: u64) -> Vec<u8> {
    let count = usize::try_from(count).unwrap_or_default();
    let mut bytes = vec![0; count];
    let Ok(base) = usize::try_from(address) else {
        return Vec::new();
    };
    let remote = [RemoteIoVec { base, len: count }];
    let local = &mut [IoSliceMut::new(&mut bytes)];
    let read = process_vm_readv(Pid::from_raw(thread), local, &remote).unwrap_or(0);
    bytes.truncate(read);
    bytes
}
