//! The scanner's library: what a kernel loads to digest its own memory.
//!
//! Not a module of this crate: `build.rs` compiles this file alone, for a process that is none of ours.

#![no_std]

mod digest;

use core::{panic::PanicInfo, slice};

use digest::{BLOCK_BYTES, digest};

/// Writes the XXH3-128 of each of `count` blocks from `memory` on, 16 bytes little endian each, to `digests`. Returns
/// how many of them are others than those that were there.
///
/// # Safety
/// There are so many readable blocks at `memory` and so much writable room at `digests`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_digests(memory: *const u8, count: usize, digests: *mut u8) -> usize {
    let mut changed = 0;
    for index in 0..count {
        // SAFETY: the caller's. Another thread that writes to the block meanwhile makes its digest a wrong one, which
        // is then taken for a change.
        let (block, place) = unsafe {
            (
                &*memory.add(index * BLOCK_BYTES).cast::<[u8; BLOCK_BYTES]>(),
                slice::from_raw_parts_mut(digests.add(index * 16), 16),
            )
        };
        let found = digest(block).to_le_bytes();
        if *place != found {
            place.copy_from_slice(&found);
            changed += 1;
        }
    }
    changed
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
