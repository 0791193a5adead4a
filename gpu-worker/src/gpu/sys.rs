//! What the driver's monitoring says of a slice (MIG), for which the library that this worker uses has no function.
#![allow(unsafe_code)]

use std::ffi::{OsStr, c_uint};

use libloading::Library;
use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_try},
};

/// `nvmlDevice_t`, which the worker never follows.
type Handle = *mut std::ffi::c_void;
/// `nvmlDeviceGetGpuInstanceId` and the like.
type GetNumber = unsafe extern "C" fn(Handle, *mut c_uint) -> c_uint;

/// The numbers of the GPU instance and of the compute instance. `library` is the one of which the handle is.
pub(super) fn instances(device: &Device<'_>, library: &OsStr) -> Result<(u32, u32), NvmlError> {
    // SAFETY: the library is loaded already, so nothing of it runs now.
    let library = unsafe { Library::new(library) }?;
    let number = |name: &[u8]| -> Result<u32, NvmlError> {
        // SAFETY: the driver's header declares both functions so.
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
