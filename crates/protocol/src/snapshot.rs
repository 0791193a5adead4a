//! Messages between object tables, as they leave one kernel and enter another.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// A message of an object table that leaves a kernel. The segments are read from the kernel's
/// memory, which keeps them alive and unchanged until it gets `Released`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The number of messages that the table sent and applied before this one; 0 starts a new table.
    pub messages: u64,
    pub stream: Stream,
    /// Every segment that the named objects can reach, changed or not.
    pub segments: Vec<SegmentView>,
    pub dropped_segments: Vec<u32>,
}

impl Snapshot {
    /// Stream and segments together; the largest number if the sum is larger than that.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let segments = self.segments.iter().map(|view| view.bytes);
        segments.fold(self.stream.bytes(), u64::saturating_add)
    }
}

/// The pickle stream: its parts in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stream(pub Vec<StreamPart>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamPart {
    Here(ByteBuf),
    /// In the kernel's address space, like a segment.
    At {
        address: u64,
        bytes: u64,
    },
}

impl Stream {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let parts = self.0.iter().map(StreamPart::bytes);
        parts.fold(0, u64::saturating_add)
    }
}

impl<T: Into<Vec<u8>>> From<T> for Stream {
    fn from(bytes: T) -> Self {
        Self(vec![StreamPart::Here(ByteBuf::from(bytes))])
    }
}

impl StreamPart {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Here(part) => part.len() as u64,
            Self::At { bytes, .. } => *bytes,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentView {
    pub number: u32,
    /// In the kernel's address space.
    pub address: u64,
    pub bytes: u64,
    /// The other end has not seen this segment before.
    pub fresh: bool,
    /// The address of the XXH3-128 of each whole block of the segment (16 bytes each, little
    /// endian), if the kernel has computed them.
    pub digests: Option<u64>,
}

/// Fresh segments of at least this many bytes are mapped from the file; smaller ones are copied.
pub const MAPPED_BYTES: u64 = 64 << 10;

/// A message of the other table that enters a kernel. Its bytes are in the file that comes with the frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    pub messages: u64,
    /// The part of the file with the pickle stream.
    pub stream: Extent,
    pub segments: Vec<SegmentDelta>,
    pub dropped_segments: Vec<u32>,
}

/// The changes of one segment. A fresh segment has one patch that covers all of it (none when it is
/// empty). From [`MAPPED_BYTES`] on it starts at a page boundary of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDelta {
    pub number: u32,
    pub bytes: u64,
    pub fresh: bool,
    pub patches: Vec<Patch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// The offset of the bytes in the segment.
    pub offset: u64,
    pub source: Extent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub offset: u64,
    pub bytes: u64,
}
