//! Chunks of state: cutting, hashing, finding what the other side lacks, storing.
//!
//! In: a snapshot, which gives the addresses of its segments in a kernel's memory. Out: a manifest and the
//! changed chunks ([`Collector`]). In reverse, a manifest and its chunks become a file that a kernel can map
//! ([`Assembler`]). On one machine both steps are one: [`pack`] writes the changes into such a file, a
//! [`Bundle`]. A [`Ledger`] records what both ends hold; a [`ChunkDirectory`] stores chunks.
//!
//! XXH3-128 detects what has changed since the last message; BLAKE3 names what is sent between machines.
//!
//! All functions block; callers run them where blocking is allowed.
//!
//! **Invariant:** nothing here reads a pickle stream or uses the network.

mod assembler;
mod bundle;
mod collector;
mod directory;
mod errors;
mod layout;
mod ledger;
pub mod memory;
mod packer;
pub mod scanner;
mod sealed;
mod untouched;

pub use assembler::Assembler;
pub use bundle::Bundle;
pub use collector::Collector;
pub use directory::{ChunkDirectory, StoredChunk};
pub use errors::{Severity, StateError};
pub use ledger::Ledger;
pub use packer::{check_size, is_quick, pack};

use baton_protocol::{ChunkHash, memory::BLOCK_BYTES};
use twox_hash::XxHash3_128;

/// The name of a chunk with these bytes.
#[must_use]
pub fn hash(bytes: &[u8]) -> ChunkHash {
    ChunkHash(*blake3::hash(bytes).as_bytes())
}

/// The digests that show which blocks have changed.
pub(crate) fn digests(bytes: &[u8]) -> impl Iterator<Item = u128> {
    bytes.chunks(BLOCK_BYTES).map(XxHash3_128::oneshot)
}
