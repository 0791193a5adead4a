//! Which hardware a session has: a GPU, or a slice of one (MIG).
//!
//! In: a handle of the driver's monitoring. Out: what the driver calls it, and where its device files are to be looked
//! for.

use std::ffi::OsStr;

use nvml_wrapper::{Device, error::NvmlError};

use super::sys;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// How programs are told that it is theirs: a UUID.
    pub name: String,
    /// The UUID of the GPU that it is or that it is a part of; `None` where the driver does not say.
    pub gpu: Option<String>,
    /// `None`: it is a whole GPU.
    pub slice: Option<Slice>,
}

/// The driver's numbers of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

impl Hardware {
    /// `library` is the one of which the handle is.
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
        // An older driver may not say where a slice is; the slice can be used all the same.
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
