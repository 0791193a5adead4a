//! The library with which a kernel digests its own memory: three times as fast as reading it from
//! another process.
//!
//! Its digests tell the packer where to look. Without the library, the packer does all of the work.

use std::{
    io,
    path::{Path, PathBuf},
};

#[cfg(test)]
mod digest;

/// The environment variable with the path of the kernel's library.
pub const SCANNER: &str = "BATON_SCANNER";

/// Writes the library for this machine's processor into a kernel's private folder.
pub fn install(folder: &Path) -> io::Result<PathBuf> {
    let library: &[u8] = match has_wide_vectors() {
        true => include_bytes!(concat!(env!("OUT_DIR"), "/scanner-wide.so")),
        false => include_bytes!(concat!(env!("OUT_DIR"), "/scanner.so")),
    };
    let path = folder.join("scanner.so");
    std::fs::write(&path, library)?;
    Ok(path)
}

/// Whether the processor has all features that the compiler assumes for `x86-64-v3`.
#[cfg(target_arch = "x86_64")]
fn has_wide_vectors() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("movbe")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_wide_vectors() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::digest::{BLOCK_BYTES, digest};
    use baton_protocol::memory;
    use proptest::prelude::*;
    use twox_hash::XxHash3_128;

    proptest! {
        #[test]
        fn the_library_and_the_packer_digest_alike(seed: [u8; 32], zero_from in 0..=BLOCK_BYTES) {
            prop_assert_eq!(BLOCK_BYTES, memory::BLOCK_BYTES);
            let mut block = [0; BLOCK_BYTES];
            blake3::Hasher::new_keyed(&seed).finalize_xof().fill(&mut block[..zero_from]);
            prop_assert_eq!(digest(&block), XxHash3_128::oneshot(&block));
        }
    }
}
