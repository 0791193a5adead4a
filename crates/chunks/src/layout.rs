//! The positions of chunks and blocks in a segment.

use baton_protocol::{CHUNK_BYTES, memory::BLOCK_BYTES, shim::MAPPED_BYTES};

/// The number of blocks in a whole chunk.
pub(crate) const CHUNK_BLOCKS: usize = CHUNK_BYTES / BLOCK_BYTES;

/// Fresh segments that are mapped start at multiples of this in the file.
const PAGE_BYTES: u64 = 4096;

/// Everything else starts at multiples of this, so that copying it is fast.
pub(crate) const LINE_BYTES: u64 = 64;

/// The alignment of a segment's bytes in the file.
pub(crate) fn border(fresh: bool, segment_bytes: u64) -> u64 {
    if fresh && segment_bytes >= MAPPED_BYTES {
        PAGE_BYTES
    } else {
        LINE_BYTES
    }
}

/// The number of blocks in a segment of this size.
pub(crate) fn block_count(segment_bytes: u64) -> u64 {
    segment_bytes.div_ceil(BLOCK_BYTES as u64)
}

/// The number of chunks in a segment of this size.
pub(crate) fn chunk_count(segment_bytes: u64) -> u64 {
    segment_bytes.div_ceil(CHUNK_BYTES as u64)
}

/// The offset of chunk `index` in its segment.
pub(crate) fn chunk_offset(index: u64) -> u64 {
    index * CHUNK_BYTES as u64
}

/// The size of chunk `index`, which must be one of the segment's.
pub(crate) fn chunk_bytes(segment_bytes: u64, index: u64) -> usize {
    let rest = segment_bytes.saturating_sub(chunk_offset(index));
    usize::try_from(rest).map_or(CHUNK_BYTES, |rest| rest.min(CHUNK_BYTES))
}
