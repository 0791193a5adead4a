//! Chunks of state: cutting, hashing, knowing what the other side has, storing.
//!
//! In: a snapshot, which says where in a kernel's memory its segments lie. Out: a manifest and the chunks that
//! changed ([`Collector`]); and from a manifest and its chunks again a file that a kernel can map ([`Assembler`]).
//! On one machine both steps are one: [`pack`] writes what changed straight into such a file, a [`Bundle`].
//! What both ends hold is written down in a [`Ledger`]; chunks that move are kept in a [`ChunkDirectory`].
//!
//! XXH3-128 tells what has changed since the last message; BLAKE3 names what moves between machines.
//!
//! All functions block; callers put them where blocking is allowed.
//!
//! **Invariant:** nothing here looks inside a pickle stream or knows a network.

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
pub use errors::BlobError;
pub use ledger::Ledger;
pub use packer::{is_quick, pack};

use baton_protocol::{ChunkHash, memory::BLOCK_BYTES};
use twox_hash::XxHash3_128;

/// The name of a chunk with these bytes.
#[must_use]
pub fn hash(bytes: &[u8]) -> ChunkHash {
    ChunkHash(*blake3::hash(bytes).as_bytes())
}

/// The digests that tell which blocks have changed.
pub(crate) fn digests(bytes: &[u8]) -> impl Iterator<Item = u128> {
    bytes.chunks(BLOCK_BYTES).map(XxHash3_128::oneshot)
}
