//! Where the bytes of a message between two object tables are.

use crate::{ChunkHash, HeldKey, Manifest, StateVersion, memory::Enclosed};
use serde::{Deserialize, Serialize};

/// State on its way between proxy and worker. The broker forwards it and never looks inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The broker has the chunks.
    Chunks(Manifest),
    /// The proxy has the bytes, for whoever is on the same machine.
    Memory(HeldState),
}

impl State {
    /// The state that this message continues.
    #[must_use]
    pub fn base(&self) -> StateVersion {
        match self {
            Self::Chunks(manifest) => manifest.base,
            Self::Memory(held) => held.base,
        }
    }

    /// Plain bytes, as far as they move.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Chunks(manifest) => manifest.bytes(),
            Self::Memory(held) => held.bytes,
        }
    }

    /// The chunks that have to be stored somewhere before this state can be read.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkHash> {
        self.sized_chunks().map(|(hash, _)| hash)
    }

    /// The same with the bytes that each is said to have.
    pub fn sized_chunks(&self) -> impl Iterator<Item = (ChunkHash, u64)> {
        let manifest = match self {
            Self::Chunks(manifest) => Some(manifest),
            Self::Memory(_) => None,
        };
        manifest.into_iter().flat_map(Manifest::sized_chunks)
    }
}

/// A file in memory that the proxy hands to those who know the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldState {
    /// The state that this message continues.
    pub base: StateVersion,
    /// Size of the file.
    pub bytes: u64,
    pub holder: Holder,
    pub key: HeldKey,
    /// The file itself, where that is less work than to fetch it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enclosed: Option<Box<Enclosed>>,
}

/// Where a proxy can be reached by processes of the same user on the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// One life of one machine. Containers on it share this; whether they share the socket shows when it is tried.
    pub host: String,
    /// The path of a Unix socket.
    pub socket: String,
}
