//! Functions of the driver that no safe library offers: those of the two programs that a worker starts (`driver.rs`),
//! and what the driver's monitoring reports about a slice (MIG).
#![allow(unsafe_code)]

pub(super) mod driver;

use libloading::Library;
use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_try},
};
use std::ffi::{OsStr, c_uint};

/// `nvmlDevice_t`, which the worker never dereferences.
type Handle = *mut std::ffi::c_void;
/// `nvmlDeviceGetGpuInstanceId` and the like.
type GetNumber = unsafe extern "C" fn(Handle, *mut c_uint) -> c_uint;

/// The numbers of the GPU instance and of the compute instance. `library` is the monitoring library that the handle
/// comes from.
pub(super) fn instances(device: &Device<'_>, library: &OsStr) -> Result<(u32, u32), NvmlError> {
    // SAFETY: the library is loaded already, so none of its code runs now.
    let library = unsafe { Library::new(library) }?;
    let number = |name: &[u8]| -> Result<u32, NvmlError> {
        // SAFETY: the driver's header declares both functions like this.
        let get = unsafe { library.get::<GetNumber>(name) }?;
        let mut number = 0;
        // SAFETY: the handle is valid while `device` is borrowed, and the function writes one number.
        let code = unsafe { get(device.handle().cast(), &raw mut number) };
        nvml_try(code)?;
        Ok(number)
    };
    Ok((
        number(b"nvmlDeviceGetGpuInstanceId\0")?,
        number(b"nvmlDeviceGetComputeInstanceId\0")?,
    ))
}
