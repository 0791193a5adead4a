//! A sealed file in memory with one message between two object tables, and the digests of its contents.
//!
//! Sender and receiver enter a bundle into their ledgers with the same code, so the ledgers stay
//! equal and nothing is hashed twice.
//!
//! **Invariant:** a bundle comes from another process; nothing in it is used before it is checked.

use crate::{Ledger, StateError, layout::border, sealed};
use baton_protocol::{
    memory::{self, BLOCK_BYTES, Enclosed},
    shim::{Delta, Extent, SegmentDelta},
};
use serde_bytes::ByteBuf;
use std::{
    collections::HashSet,
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

const DIGEST_BYTES: usize = size_of::<u128>();

#[derive(Debug)]
pub struct Bundle {
    file: OwnedFd,
    file_bytes: u64,
    content: memory::Bundle,
}

impl Bundle {
    /// Checks a received bundle, as far as that is possible without a ledger.
    pub fn receive(content: memory::Bundle, file: OwnedFd) -> Result<Self, StateError> {
        if !sealed::is_sealed(&file) {
            return Err(StateError::Bundle(
                "its file is not sealed, so it can still be changed",
            ));
        }
        let file = File::from(file);
        let file_bytes = file.metadata().map_err(StateError::Assemble)?.len();
        let bundle = Self {
            file: file.into(),
            file_bytes,
            content,
        };
        bundle.check()?;
        Ok(bundle)
    }

    pub(crate) fn new(delta: Delta, digests: &[u128], file: File) -> Result<Self, StateError> {
        let mut bytes = Vec::with_capacity(digests.len() * DIGEST_BYTES);
        for digest in digests {
            bytes.extend_from_slice(&digest.to_le_bytes());
        }
        let digests = ByteBuf::from(bytes);
        Self::receive(memory::Bundle { delta, digests }, sealed::seal(file)?)
    }

    /// Returns the bundle as bytes if it is small.
    pub fn enclose(&self) -> Result<Option<Box<Enclosed>>, StateError> {
        const MOST_BYTES: u64 = 8 << 10;
        if self.file_bytes > MOST_BYTES {
            return Ok(None);
        }
        let source = File::from(self.file.try_clone().map_err(StateError::Assemble)?);
        #[expect(clippy::cast_possible_truncation, reason = "at most MOST_BYTES")]
        let mut file = vec![0; self.file_bytes as usize];
        source
            .read_exact_at(&mut file, 0)
            .map_err(StateError::Assemble)?;
        Ok(Some(Box::new(Enclosed {
            bundle: self.content.clone(),
            file: ByteBuf::from(file),
        })))
    }

    /// Reverses [`Self::enclose`], with the checks of [`Bundle::receive`].
    pub fn disclose(enclosed: Enclosed) -> Result<Self, StateError> {
        let file = sealed::create()?;
        file.write_all_at(&enclosed.file, 0)
            .map_err(sealed::no_room)?;
        Self::receive(enclosed.bundle, sealed::seal(file)?)
    }

    /// What a receiver needs in addition to the file.
    #[must_use]
    pub fn content(&self) -> &memory::Bundle {
        &self.content
    }

    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Size of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Delta) {
        (self.file, self.content.delta)
    }

    /// Enters the bundle into `ledger`, the state after the last message of the same table. Returns
    /// what both ends hold once the bundle has been applied.
    pub fn enter(&self, mut ledger: Ledger) -> Result<Ledger, StateError> {
        let delta = &self.content.delta;
        if delta.messages == 0 {
            ledger.clear();
        }
        for segment in &delta.dropped_segments {
            ledger.forget(*segment);
        }
        let mut digests = self.digests();
        for segment in &delta.segments {
            if segment.fresh {
                ledger.begin(segment.number, segment.bytes);
            } else {
                ledger.check_known(segment.number, segment.bytes)?;
            }
            for patch in &segment.patches {
                let blocks: Vec<u128> = digests.by_ref().take(blocks(patch.source)).collect();
                ledger.note(segment.number, index(patch.offset), &blocks);
            }
        }
        Ok(ledger)
    }

    fn digests(&self) -> impl Iterator<Item = u128> {
        let (digests, _) = self.content.digests.as_chunks::<DIGEST_BYTES>();
        digests.iter().map(|bytes| u128::from_le_bytes(*bytes))
    }

    fn check(&self) -> Result<(), StateError> {
        let memory::Bundle { delta, digests } = &self.content;
        self.check_extent(delta.stream)?;
        let dropped: HashSet<u32> = delta.dropped_segments.iter().copied().collect();
        let mut numbers = HashSet::new();
        let mut patched = 0;
        for segment in &delta.segments {
            if !numbers.insert(segment.number) {
                return Err(StateError::Bundle("a segment is listed twice"));
            }
            if dropped.contains(&segment.number) {
                return Err(StateError::Bundle("a segment is both listed and dropped"));
            }
            self.check_segment(segment)?;
            let sources = segment.patches.iter().map(|patch| blocks(patch.source));
            patched += sources.sum::<usize>();
        }
        (digests.len() == patched * DIGEST_BYTES)
            .then_some(())
            .ok_or(StateError::Bundle(
                "it does not have one digest for each block",
            ))
    }

    fn check_segment(&self, segment: &SegmentDelta) -> Result<(), StateError> {
        let whole = match segment.patches.as_slice() {
            [] => segment.bytes == 0,
            [patch] => patch.offset == 0 && patch.source.bytes == segment.bytes,
            _ => false,
        };
        if segment.fresh && !whole {
            return Err(StateError::Bundle("a new segment is incomplete"));
        }
        let border = border(segment.fresh, segment.bytes);
        let mut end = 0;
        for patch in &segment.patches {
            self.check_extent(patch.source)?;
            let begins_block = patch.offset.is_multiple_of(BLOCK_BYTES as u64);
            if !begins_block || patch.offset < end || !patch.source.offset.is_multiple_of(border) {
                return Err(StateError::Bundle("a patch is in the wrong place"));
            }
            end = patch.offset.saturating_add(patch.source.bytes);
            let ends_block = patch.source.bytes.is_multiple_of(BLOCK_BYTES as u64);
            if end > segment.bytes || !(ends_block || end == segment.bytes) {
                return Err(StateError::Bundle("a patch does not fit its segment"));
            }
        }
        Ok(())
    }

    fn check_extent(&self, extent: Extent) -> Result<(), StateError> {
        let end = extent.offset.checked_add(extent.bytes);
        end.is_some_and(|end| end <= self.file_bytes)
            .then_some(())
            .ok_or(StateError::Bundle("an extent lies outside its file"))
    }
}

/// Sizes and offsets were checked against the size of the file.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a file in memory is no larger than memory"
)]
fn blocks(extent: Extent) -> usize {
    extent.bytes.div_ceil(BLOCK_BYTES as u64) as usize
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "see check_known: the segment has as many blocks"
)]
fn index(offset: u64) -> usize {
    (offset / BLOCK_BYTES as u64) as usize
}
