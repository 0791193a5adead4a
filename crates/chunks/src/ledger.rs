//! What both ends of an object table hold, as the XXH3-128 of each block of each segment.
//!
//! **Invariant:** once a message has been sent and applied, the ledgers of both ends are equal.

use crate::{StateError, layout::block_count};
use baton_protocol::shim::SegmentView;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    segments: HashMap<u32, Record>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    bytes: u64,
    /// Shared by copies of the ledger until one of them notes something new.
    digests: Arc<Vec<u128>>,
}

impl Ledger {
    /// The number of segments that both ends hold.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// A new table begins.
    pub(crate) fn clear(&mut self) {
        self.segments.clear();
    }

    pub(crate) fn forget(&mut self, segment: u32) {
        self.segments.remove(&segment);
    }

    /// Begins a segment that the other end has not seen. Its blocks are noted in order.
    pub(crate) fn begin(&mut self, segment: u32, bytes: u64) {
        let digests = Arc::default();
        self.segments.insert(segment, Record { bytes, digests });
    }

    /// Checks that a snapshot fits what was sent before.
    pub(crate) fn check_snapshot(
        &self,
        segments: &[SegmentView],
        dropped: &[u32],
    ) -> Result<(), StateError> {
        let mut numbers = HashSet::new();
        let dropped: HashSet<u32> = dropped.iter().copied().collect();
        for view in segments {
            let segment = view.number;
            let wrong = |what| StateError::Ledger { segment, what };
            if !numbers.insert(segment) {
                return Err(wrong("is listed twice"));
            }
            if dropped.contains(&segment) {
                return Err(wrong("is both listed and dropped"));
            }
            if !view.fresh {
                self.check_known(segment, view.bytes)?;
            }
        }
        Ok(())
    }

    /// Checks a segment that both ends should already hold.
    pub(crate) fn check_known(&self, segment: u32, bytes: u64) -> Result<(), StateError> {
        let wrong = |what| StateError::Ledger { segment, what };
        let record = self
            .segments
            .get(&segment)
            .ok_or_else(|| wrong("was never sent"))?;
        if record.bytes != bytes {
            return Err(wrong("has another size than before"));
        }
        let complete = record.digests.len() as u64 == block_count(bytes);
        complete
            .then_some(())
            .ok_or_else(|| wrong("was never sent whole"))
    }

    /// Records blocks of a segment that has begun or is known, from block `first` on. Returns
    /// whether any has changed.
    pub(crate) fn note(&mut self, segment: u32, first: usize, digests: &[u128]) -> bool {
        let Some(record) = self.segments.get_mut(&segment) else {
            return true;
        };
        let end = first + digests.len();
        if record.digests.get(first..end) == Some(digests) {
            return false;
        }
        let known = Arc::make_mut(&mut record.digests);
        if known.len() < end {
            known.resize(end, 0);
        }
        known[first..end].copy_from_slice(digests);
        true
    }

    /// The digests of a segment's blocks; empty for a segment that was never sent.
    pub(crate) fn digests(&self, segment: u32) -> &[u128] {
        self.segments
            .get(&segment)
            .map_or(&[], |record| &record.digests)
    }
}
