//! Messages between object tables, as they leave a kernel and as they enter one.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Bytes that an object table says, on their way out of a kernel: the segments are read where they lie.
/// The kernel keeps them alive and unchanged until it hears `Released`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// How many messages the table had sent and applied before this one; 0 starts a new table.
    pub messages: u64,
    pub stream: Stream,
    /// Every segment that what was named can reach, changed or not.
    pub segments: Vec<SegmentView>,
    pub dropped_segments: Vec<u32>,
}

/// The pickle stream: its parts, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stream(pub Vec<StreamPart>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamPart {
    Here(ByteBuf),
    /// In the kernel's address space, as a segment.
    At {
        address: u64,
        bytes: u64,
    },
}

impl Stream {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(StreamPart::bytes).sum()
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
    /// Where the kernel has put the XXH3-128 of each whole block of the segment (16 bytes each, little endian), if it
    /// has looked for itself.
    pub digests: Option<u64>,
}

/// Fresh segments of at least this many bytes are mapped where they lie in the file; smaller ones are copied.
pub const MAPPED_BYTES: u64 = 64 << 10;

/// A message of the other table, on its way into a kernel. The bytes lie in the file that comes with the frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    pub messages: u64,
    /// Where in the file the pickle stream lies.
    pub stream: Extent,
    pub segments: Vec<SegmentDelta>,
    pub dropped_segments: Vec<u32>,
}

/// A fresh segment has one patch that covers all of it (none when it is empty); from [`MAPPED_BYTES`] on it lies at a
/// page border of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDelta {
    pub number: u32,
    pub bytes: u64,
    pub fresh: bool,
    pub patches: Vec<Patch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// Where in the segment the bytes belong.
    pub offset: u64,
    pub source: Extent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub offset: u64,
    pub bytes: u64,
}
