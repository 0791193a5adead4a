//! The name of a chunk.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A segment is cut into chunks of this many bytes; the last one may be shorter.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Pieces of at most this many bytes are stored in the manifest instead of as separate chunks.
pub const INLINE_BYTES: usize = 16 << 10;

/// A stored chunk counts as at least this many bytes in every limit: it takes a block of the disk and a row of the
/// database, however short it is.
pub const LEAST_COUNTED_BYTES: u64 = 4 << 10;

/// What a chunk of this many bytes counts in limits.
#[must_use]
pub fn counted_bytes(bytes: u64) -> u64 {
    bytes.max(LEAST_COUNTED_BYTES)
}

/// The BLAKE3 hash of a chunk's plain bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHash(pub [u8; 32]);

#[derive(Debug, thiserror::Error)]
#[error("A chunk's name is 64 hexadecimal digits, not {0:?}")]
pub struct ChunkHashError(String);

impl fmt::Display for ChunkHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ChunkHash({self})")
    }
}

impl std::str::FromStr for ChunkHash {
    type Err = ChunkHashError;

    fn from_str(text: &str) -> Result<Self, ChunkHashError> {
        let wrong = || ChunkHashError(text.chars().take(80).collect());
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (index, byte) in hash.iter_mut().enumerate() {
            let digits = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

impl Serialize for ChunkHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_bytes::Bytes::new(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChunkHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_bytes::ByteArray::<32>::deserialize(deserializer)
            .map(|bytes| Self(bytes.into_array()))
    }
}
