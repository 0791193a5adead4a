//! Memory that a program creates without an address, and maps itself.

use super::{Answer, Code, Driver, Refusal, SUCCESS};
use std::{ffi::c_int, mem::transmute_copy};

const ON_DEVICE: i32 = 1;
const READ_WRITE: i32 = 3;

impl Driver {
    /// Creates memory without an address, at a place of this kind, and returns its handle.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn create_piece(&self, place: i32, bytes: usize) -> Answer<u64> {
        self.create(place, 0, bytes)
    }

    fn create(&self, place: i32, handle_types: i32, bytes: usize) -> Answer<u64> {
        let (mut handle, mut properties) = (0, [0; 8]);
        (properties[0], properties[1], properties[2]) = (1, handle_types, place);
        call!(
            self, "cuMemCreate", &raw mut handle => *mut u64, bytes => usize, properties.as_ptr() => *const i32,
            0 => u64
        )?;
        Ok(handle)
    }

    /// The same on the GPU, as libraries ask for it that could share it with another process.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn create_shareable_piece(&self, bytes: usize) -> Answer<u64> {
        const AS_A_FILE: i32 = 1;
        self.create(ON_DEVICE, AS_A_FILE, bytes)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn release_piece(&self, handle: u64) -> Answer {
        call!(self, "cuMemRelease", handle => u64)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn reserve(&self, bytes: usize) -> Answer<u64> {
        let mut address = 0;
        call!(
            self, "cuMemAddressReserve", &raw mut address => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64
        )?;
        Ok(address)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn unreserve(&self, address: u64, bytes: usize) -> Answer {
        call!(self, "cuMemAddressFree", address => u64, bytes => usize)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn map(&self, address: u64, bytes: usize, handle: u64) -> Answer {
        call!(self, "cuMemMap", address => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn unmap(&self, address: u64, bytes: usize) -> Answer {
        call!(self, "cuMemUnmap", address => u64, bytes => usize)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn permit(&self, address: u64, bytes: usize, device: i32) -> Answer {
        let access = [ON_DEVICE, device, READ_WRITE];
        call!(
            self, "cuMemSetAccess", address => u64, bytes => usize, access.as_ptr() => *const i32, 1 => usize
        )
    }

    /// Whether this program may read and write at the address.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn may_write(&self, address: u64) -> Answer<bool> {
        let (mut flags, location) = (0, [ON_DEVICE, 0]);
        call!(
            self, "cuMemGetAccess", &raw mut flags => *mut u64, location.as_ptr() => *const i32, address => u64
        )?;
        Ok(flags == READ_WRITE as u64)
    }

    /// A further hold on the piece behind an address, whose handle is returned.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn hold_piece_at(&self, address: u64) -> Answer<u64> {
        let mut handle = 0;
        call!(self, "cuMemRetainAllocationHandle", &raw mut handle => *mut u64, address => u64)?;
        Ok(handle)
    }

    /// The kind of a piece's place, and whether it was to be shareable.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn properties_of(&self, handle: u64) -> Answer<(i32, bool)> {
        let mut properties = [0; 8];
        call!(
            self, "cuMemGetAllocationPropertiesFromHandle", properties.as_mut_ptr() => *mut i32, handle => u64
        )?;
        Ok((properties[2], properties[1] != 0))
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn export_piece(&self, handle: u64) -> Answer {
        let mut file: c_int = 0;
        call!(
            self, "cuMemExportToShareableHandle", &raw mut file => *mut c_int, handle => u64, 1 => c_int, 0 => u64
        )
    }
}
