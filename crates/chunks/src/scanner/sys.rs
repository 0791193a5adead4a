//! The scanner's library: what a kernel loads to digest its own memory, and to keep it as it is.
//!
//! Not a module of this crate: `build.rs` compiles this file alone, for a process that is none of ours.

#![no_std]

mod digest;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[path = "sys/keeper.rs"]
mod keeper;

use core::{panic::PanicInfo, slice};

use digest::{BLOCK_BYTES, digest};

/// Writes the XXH3-128 of each block of `count` runs, 16 bytes little endian each, to the block's place in `digests`.
/// A run is the number of its first block, counted from `memory` on, and how many blocks it has. Returns how many
/// digests are others than those that were there.
///
/// # Safety
/// Each of these blocks is readable at `memory`, and has writable room at `digests`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_digests(
    memory: *const u8,
    runs: *const [usize; 2],
    count: usize,
    digests: *mut u8,
) -> usize {
    let mut changed = 0;
    for run in 0..count {
        // SAFETY: the caller's.
        let [first, blocks] = unsafe { *runs.add(run) };
        for index in first..first + blocks {
            // SAFETY: the caller's. Another thread that writes to the block meanwhile makes its digest a wrong one,
            // which is then taken for a change.
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
    }
    changed
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
