//! The scanner's library, which a kernel loads to digest its own memory and to preserve it.
//!
//! This is not a module of the crate: `build.rs` compiles the file separately, for a process that
//! is not Baton's own.

#![no_std]

mod digest;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[path = "sys/keeper.rs"]
mod keeper;

use core::{panic::PanicInfo, slice};
use digest::{BLOCK_BYTES, digest};

/// Writes the XXH3-128 of each block of `count` runs, 16 bytes little endian, to the block's place
/// in `digests`. A run is the number of its first block, counted from `memory`, and its number of
/// blocks. Returns the number of digests that differ from the previous ones.
///
/// # Safety
/// Each of these blocks is readable at `memory`, and has writable space at `digests`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_digests(
    memory: *const u8,
    runs: *const [usize; 2],
    count: usize,
    digests: *mut u8,
) -> usize {
    let mut changed = 0;
    for run in 0..count {
        // SAFETY: guaranteed by the caller.
        let [first, blocks] = unsafe { *runs.add(run) };
        for index in first..first + blocks {
            // SAFETY: guaranteed by the caller. If another thread writes to the block meanwhile,
            // the digest is wrong and the block counts as changed.
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
