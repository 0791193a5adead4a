//! The work of packing, in parts for several threads: ranges to copy, which already have a place in
//! the file, and ranges to search for changes.

use crate::{Ledger, StateError, layout::border, memory};
use baton_protocol::{memory::BLOCK_BYTES, shim::SegmentView};
use std::{mem, ops::Range};

/// The amount of work that one thread takes at a time.
const TASK_BYTES: u64 = 4 << 20;

/// The number of digests to read at once.
const STEP: usize = 16 << 10;

/// A part of one segment.
pub(super) struct Task<'snapshot> {
    pub(super) view: &'snapshot SegmentView,
    pub(super) content: Content,
}

pub(super) enum Content {
    /// Copied to this offset in the file, one range after the other.
    Placed { ranges: Vec<Range<u64>>, place: u64 },
    /// Searched; only changed blocks are copied.
    Sought(Range<u64>),
}

impl Content {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Placed { ranges, .. } => total(ranges),
            Self::Sought(range) => range.end - range.start,
        }
    }
}

fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Assigns places in the file to the ranges that are certain to be copied.
pub(super) fn lay_out<'snapshot>(
    pid: i32,
    views: &'snapshot [SegmentView],
    ledger: &Ledger,
    end: &mut u64,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Task<'snapshot>>, StateError> {
    let mut tasks = Vec::with_capacity(views.len());
    for view in views {
        if cancelled() {
            return Err(StateError::Cancelled);
        }
        let whole = 0..view.bytes;
        let (placed, sought) = match view.digests {
            _ if view.fresh => (vec![whole.clone()], whole.end..whole.end),
            Some(digests) => {
                let blocks_end = view.bytes - view.bytes % BLOCK_BYTES as u64;
                let known = ledger.digests(view.number);
                (
                    found_changed(pid, digests, known, blocks_end)?,
                    blocks_end..whole.end,
                )
            }
            None => (vec![], whole),
        };
        for ranges in portions(placed, TASK_BYTES) {
            let place = end.next_multiple_of(border(view.fresh, view.bytes));
            *end = place + total(&ranges);
            let content = Content::Placed { ranges, place };
            tasks.push(Task { view, content });
        }
        for range in portions(vec![sought], TASK_BYTES).into_iter().flatten() {
            let content = Content::Sought(range);
            tasks.push(Task { view, content });
        }
    }
    Ok(tasks)
}

/// Finds the whole blocks whose digest by the kernel differs from what the other end holds.
/// `digests` is the address of the kernel's digests; `known` are those of the other end.
fn found_changed(
    pid: i32,
    digests: u64,
    known: &[u128],
    blocks_end: u64,
) -> Result<Vec<Range<u64>>, StateError> {
    const DIGEST_BYTES: usize = size_of::<u128>();
    let blocks = usize::try_from(blocks_end / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
    let mut ranges = Vec::new();
    let mut found = Vec::new();
    for (first, known) in (0..)
        .step_by(STEP)
        .zip(known[..blocks.min(known.len())].chunks(STEP))
    {
        found.resize(known.len() * DIGEST_BYTES, 0);
        let address = digests.wrapping_add((first * DIGEST_BYTES) as u64);
        memory::read(pid, address, &mut found)?;
        let (found, _) = found.as_chunks::<DIGEST_BYTES>();
        for (index, (known, found)) in known.iter().zip(found).enumerate() {
            if *known == u128::from_le_bytes(*found) {
                continue;
            }
            let start = (first + index) as u64 * BLOCK_BYTES as u64;
            append(&mut ranges, start..start + BLOCK_BYTES as u64);
        }
    }
    Ok(ranges)
}

/// Appends a range, or extends the last one if they are contiguous.
pub(super) fn append(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Groups ranges into portions of `bytes` in total; a portion is part of one range, or several.
pub(super) fn portions(ranges: Vec<Range<u64>>, bytes: u64) -> Vec<Vec<Range<u64>>> {
    let (mut portions, mut portion) = (Vec::new(), Vec::new());
    let mut room = bytes;
    for Range { mut start, end } in ranges {
        while start < end {
            let part = start..end.min(start + room);
            start = part.end;
            room -= part.end - part.start;
            portion.push(part);
            if room == 0 {
                portions.push(mem::take(&mut portion));
                room = bytes;
            }
        }
    }
    if !portion.is_empty() {
        portions.push(portion);
    }
    portions
}
