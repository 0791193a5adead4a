//! The driver's structures that describe memory without an address.

use std::ffi::{c_int, c_void};

/// A session that shares its GPU by time has only one.
pub(in super::super) const ONLY_DEVICE: c_int = 0;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// Properties of an allocation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Properties {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: Location,
    pub(super) _windows: *mut c_void,
    /// Whether it is compressed, whether other devices may write to it, and its use (two bytes).
    pub(super) flags: [u8; 8],
}

// SAFETY: the pointer is for Windows, and is not followed.
unsafe impl Send for Properties {}

impl Properties {
    /// Whether it is ordinary memory of the session's GPU, rather than of the host or for sparse arrays.
    pub(super) fn is_ordinary(&self) -> bool {
        self.kind == PINNED && self.location == OWN_GPU && self.flags[2..4] == [0, 0]
    }

    /// Whether other machines could get access.
    pub(super) fn is_for_fabric(&self) -> bool {
        const FABRIC: c_int = 8;
        self.handle_types & FABRIC != 0
    }
}

/// Who may access a range of addresses, and how.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Access {
    pub(in super::super) location: Location,
    pub(super) flags: c_int,
}

const OWN_GPU: Location = Location {
    kind: ON_DEVICE,
    id: ONLY_DEVICE,
};

impl Access {
    /// Whether the driver certainly grants it.
    pub(super) fn is_ordinary(&self) -> bool {
        self.location == OWN_GPU && matches!(self.flags, 0 | 1 | 3)
    }
}

impl Location {
    /// Whether it is the host, or one of its NUMA nodes.
    pub(super) fn is_host(self) -> bool {
        matches!(self.kind, 2..=4)
    }
}

pub(super) const ON_DEVICE: c_int = 1;
pub(super) const PINNED: c_int = 1;
