//! Compares the structures of the driver in host memory with NVIDIA's header, by way of its bindings.

use cudarc::driver::sys;
use std::mem::offset_of;
use structures::{Allocation, Copy, Set, Side};

#[path = "../../src/driver/sys/structures.rs"]
mod structures;

macro_rules! same {
    ($own:ty, $theirs:ty: $($field:ident = $their_field:ident),*) => {
        assert_eq!(size_of::<$own>(), size_of::<$theirs>(), stringify!($own));
        assert_eq!(align_of::<$own>(), align_of::<$theirs>(), stringify!($own));
        $(assert_eq!(
            offset_of!($own, $field),
            offset_of!($theirs, $their_field),
            concat!(stringify!($own), ".", stringify!($field))
        );)*
    };
}

/// One half of a copy begins at its first field.
macro_rules! same_side {
    ($side:ident: $($field:ident = $their_field:ident),*) => {
        $(assert_eq!(
            offset_of!(Copy, $side) + offset_of!(Side, $field),
            offset_of!(sys::CUDA_MEMCPY3D, $their_field),
            stringify!($their_field)
        );)*
    };
}

#[test]
fn the_driver_reads_structures_as_nvidia_s_header_declares_them() {
    same!(
        Set, sys::CUDA_MEMSET_NODE_PARAMS:
        to = dst, _pitch = pitch, value = value, element_bytes = elementSize, width = width, height = height
    );
    same!(Copy, sys::CUDA_MEMCPY3D: width = WidthInBytes, height = Height, depth = Depth);
    same_side!(
        from: x = srcXInBytes, y = srcY, z = srcZ, kind = srcMemoryType, host = srcHost,
        device = srcDevice, _array = srcArray, _reserved = reserved0, _pitch = srcPitch, _height = srcHeight
    );
    same_side!(
        to: x = dstXInBytes, y = dstY, z = dstZ, kind = dstMemoryType, host = dstHost,
        device = dstDevice, _array = dstArray, _reserved = reserved1, _pitch = dstPitch, _height = dstHeight
    );
    same!(
        Allocation, sys::CUDA_MEM_ALLOC_NODE_PARAMS:
        _pool = poolProps, _access = accessDescs, _count = accessDescCount, bytes = bytesize, address = dptr
    );
}
