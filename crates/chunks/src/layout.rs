//! Where the chunks and the blocks of a segment lie.

use baton_protocol::{CHUNK_BYTES, memory::BLOCK_BYTES, shim::MAPPED_BYTES};

/// How many blocks a whole chunk has.
pub(crate) const CHUNK_BLOCKS: usize = CHUNK_BYTES / BLOCK_BYTES;

/// Fresh segments that are mapped begin at multiples of this in the file.
const PAGE_BYTES: u64 = 4096;

/// Everything else begins at multiples of this, so that copying it is quick.
pub(crate) const LINE_BYTES: u64 = 64;

/// What the place of a segment's bytes in the file is a multiple of.
pub(crate) fn border(fresh: bool, segment_bytes: u64) -> u64 {
    if fresh && segment_bytes >= MAPPED_BYTES {
        PAGE_BYTES
    } else {
        LINE_BYTES
    }
}

/// How many blocks a segment of this size has.
pub(crate) fn block_count(segment_bytes: u64) -> u64 {
    segment_bytes.div_ceil(BLOCK_BYTES as u64)
}

/// How many chunks a segment of this size has.
pub(crate) fn chunk_count(segment_bytes: u64) -> u64 {
    segment_bytes.div_ceil(CHUNK_BYTES as u64)
}

/// Where chunk `index` begins in its segment.
pub(crate) fn chunk_offset(index: u64) -> u64 {
    index * CHUNK_BYTES as u64
}

/// The size of chunk `index`, which is one of the segment's.
pub(crate) fn chunk_bytes(segment_bytes: u64, index: u64) -> usize {
    let rest = segment_bytes.saturating_sub(chunk_offset(index));
    usize::try_from(rest).map_or(CHUNK_BYTES, |rest| rest.min(CHUNK_BYTES))
}
