//! Where the bytes of a message between two object tables are.

use crate::{ChunkHash, HeldKey, Manifest, StateVersion, TableId, memory::Enclosed};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// State that proxy and worker exchange. The broker forwards it without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The broker has the chunks.
    Chunks(Manifest),
    /// The proxy has the bytes, for workers on the same machine.
    Memory(HeldState),
}

impl State {
    /// Continues a state that no session holds, so every worker asks for a complete one.
    #[must_use]
    pub const fn outdated() -> Self {
        Self::Chunks(Manifest {
            base: StateVersion {
                table: TableId(Uuid::nil()),
                messages: 1,
            },
            stream: Vec::new(),
            segments: Vec::new(),
            dropped_segments: Vec::new(),
        })
    }

    /// The state that this message continues.
    #[must_use]
    pub fn base(&self) -> StateVersion {
        match self {
            Self::Chunks(manifest) => manifest.base,
            Self::Memory(held) => held.base,
        }
    }

    /// The uncompressed size of the bytes that are transferred.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Chunks(manifest) => manifest.bytes(),
            Self::Memory(held) => held.bytes,
        }
    }

    /// The chunks that must be stored before this state can be read.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkHash> {
        self.sized_chunks().map(|(hash, _)| hash)
    }

    /// The same, with the announced size of each chunk.
    pub fn sized_chunks(&self) -> impl Iterator<Item = (ChunkHash, u64)> {
        let manifest = match self {
            Self::Chunks(manifest) => Some(manifest),
            Self::Memory(_) => None,
        };
        manifest.into_iter().flat_map(Manifest::sized_chunks)
    }
}

/// A file in memory that the proxy gives to any process that knows the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldState {
    /// The state that this message continues.
    pub base: StateVersion,
    /// Size of the file.
    pub bytes: u64,
    pub holder: Holder,
    pub key: HeldKey,
    /// The file itself, if including it costs less than fetching it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enclosed: Option<Box<Enclosed>>,
}

/// Where a proxy can be reached by processes of the same user on the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Identifies one boot of one machine. Containers on it share this value; whether they share
    /// the socket is found out by trying.
    pub host: String,
    /// The path of a Unix socket.
    pub socket: String,
}
