//! Short-lived permissions to transfer chunks to or from an object store without the broker.

use crate::ChunkHash;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The broker's answer to a peer that wants to transfer chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grants {
    /// The broker transfers the bytes itself.
    Broker {},
    /// One for each chunk, except for those that need not be uploaded or do not exist here.
    Store { grants: Vec<Grant> },
}

/// Permission for one request about one chunk.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub chunk: ChunkHash,
    /// The chunk's size. The store refuses any other size, or the broker deletes an object that has one.
    pub bytes: u64,
    /// A signed address: anyone who has it can make the request until it expires.
    pub url: String,
    /// Headers that the request must have.
    pub headers: Vec<(String, String)>,
}

/// Hides the address, which is a secret.
impl fmt::Debug for Grant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Grant({})", self.chunk)
    }
}
