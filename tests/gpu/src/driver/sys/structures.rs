//! Structures that programs pass to the driver, as NVIDIA's header declares them. A test of this crate compares them.

use std::ffi::{c_uint, c_void};

/// The header's `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
pub struct Set {
    pub to: u64,
    pub _pitch: usize,
    pub value: c_uint,
    pub element_bytes: c_uint,
    pub width: usize,
    pub height: usize,
}

/// The header's `CUDA_MEMCPY3D`, one half for each side.
#[repr(C)]
pub struct Copy {
    pub from: Side,
    pub to: Side,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

#[repr(C)]
pub struct Side {
    pub x: usize,
    pub y: usize,
    pub z: usize,
    pub _level: usize,
    pub kind: c_uint,
    pub host: u64,
    pub device: u64,
    pub _array: usize,
    pub _reserved: usize,
    pub _pitch: usize,
    pub _height: usize,
}

/// The header's `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub struct Allocation {
    pub _pool: [usize; 11],
    pub _access: *const c_void,
    pub _count: usize,
    pub bytes: usize,
    pub address: u64,
}
