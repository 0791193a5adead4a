//! Which hardware a session has: a GPU, or a slice of one (MIG).
//!
//! In: a handle of the driver's monitoring. Out: the driver's name for the hardware, and where to look for its
//! device files.

use super::sys;
use nvml_wrapper::{Device, error::NvmlError};
use std::ffi::OsStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// The UUID that tells programs which hardware is theirs.
    pub name: String,
    /// The UUID of the GPU that it is, or that it is a part of; `None` if the driver does not report it.
    pub gpu: Option<String>,
    /// `None` for a whole GPU.
    pub slice: Option<Slice>,
}

/// The driver's numbers for a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

impl Hardware {
    /// `library` is the monitoring library that the handle comes from.
    pub(super) fn of(device: &Device<'_>, library: &OsStr) -> Result<Self, NvmlError> {
        let name = device.uuid()?;
        if !device.mig_is_mig_device_handle().unwrap_or(false) {
            let gpu = Some(name.clone());
            return Ok(Self {
                name,
                gpu,
                slice: None,
            });
        }
        // An older driver may not report where a slice is; the slice can be used nevertheless.
        let found = parts(device, library);
        if let Err(error) = &found {
            tracing::debug!("Unknown to which GPU {name} belongs: {error}");
        }
        let (gpu, slice) = found.ok().unzip();
        Ok(Self { name, gpu, slice })
    }
}

fn parts(device: &Device<'_>, library: &OsStr) -> Result<(String, Slice), NvmlError> {
    let gpu = device.mig_parent_device()?.uuid()?;
    let (gpu_instance, compute_instance) = sys::instances(device, library)?;
    let slice = Slice {
        gpu_instance,
        compute_instance,
    };
    Ok((gpu, slice))
}
