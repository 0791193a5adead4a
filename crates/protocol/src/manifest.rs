//! The parts of a snapshot, as proxy and worker exchange them.

use crate::{ChunkHash, TableId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Which state of which object table a manifest continues.
///
/// Both ends count the messages that they have applied. A manifest with `messages == 0` starts a new table and
/// depends on nothing earlier; a session can use any other only if it holds exactly this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StateVersion {
    pub table: TableId,
    pub messages: u64,
}

impl StateVersion {
    /// What both ends hold after one more message, in either direction.
    #[must_use]
    pub fn after_message(self) -> Self {
        Self {
            messages: self.messages + 1,
            ..self
        }
    }
}

/// One message between two object tables, cut into chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The state that this message continues.
    pub base: StateVersion,
    /// The pickle stream, cut like a segment.
    pub stream: Vec<Piece>,
    /// The segments that are new or changed.
    pub segments: Vec<SegmentPart>,
    /// Segments that are no longer in any table.
    pub dropped_segments: Vec<u32>,
}

impl Manifest {
    /// All pieces, in the order in which they are stored and fetched.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let of_segments = self.segments.iter().flat_map(|segment| &segment.chunks);
        self.stream
            .iter()
            .chain(of_segments.map(|(_, piece)| piece))
    }

    /// The chunks that must be stored before this manifest can be read.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkHash> {
        self.sized_chunks().map(|(hash, _)| hash)
    }

    /// The same, with the announced size of each chunk.
    pub fn sized_chunks(&self) -> impl Iterator<Item = (ChunkHash, u64)> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Stored { hash, bytes } => Some((*hash, u64::from(*bytes))),
            Piece::Inline(_) => None,
        })
    }

    /// The uncompressed size of all pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces().map(Piece::bytes).sum()
    }
}

/// At most [`crate::CHUNK_BYTES`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// Small enough to be stored in the manifest.
    Inline(Bytes),
    Stored {
        hash: ChunkHash,
        bytes: u32,
    },
}

impl Piece {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Stored { bytes, .. } => u64::from(*bytes),
        }
    }

    /// The hash of a piece that is not inline.
    #[must_use]
    pub fn hash(&self) -> Option<ChunkHash> {
        match self {
            Self::Inline(_) => None,
            Self::Stored { hash, .. } => Some(*hash),
        }
    }
}

/// The changes of one segment: chunk `n` covers the bytes from offset `n * CHUNK_BYTES`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPart {
    pub number: u32,
    /// Size of the whole segment in bytes.
    pub bytes: u64,
    /// The receiver has not seen this segment before, so all of its chunks are here, in order.
    pub fresh: bool,
    pub chunks: Vec<(u32, Piece)>,
}
