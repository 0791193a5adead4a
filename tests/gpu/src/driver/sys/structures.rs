//! Structures that programs pass to the driver, as NVIDIA's header declares them. A test of this crate compares them.

use std::ffi::{c_uint, c_void};

/// The header's `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct Set {
    pub(crate) to: u64,
    pub(crate) _pitch: usize,
    pub(crate) value: c_uint,
    pub(crate) element_bytes: c_uint,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// The header's `CUDA_MEMCPY3D`, one half for each side.
#[repr(C)]
pub(crate) struct Copy {
    pub(crate) from: Side,
    pub(crate) to: Side,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

#[repr(C)]
pub(crate) struct Side {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) _level: usize,
    pub(crate) kind: c_uint,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) _array: usize,
    pub(crate) _reserved: usize,
    pub(crate) _pitch: usize,
    pub(crate) _height: usize,
}

/// The header's `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct Allocation {
    pub(crate) _pool: [usize; 11],
    pub(crate) _access: *const c_void,
    pub(crate) _count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}
