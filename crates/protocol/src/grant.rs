//! Short-lived permissions to move chunks to or from an object store, past the broker.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::ChunkHash;

/// What the broker answers whoever is about to move chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grants {
    /// It takes and gives the bytes itself.
    Broker {},
    /// One for each chunk, except for those that need not be uploaded or are unknown here.
    Store { grants: Vec<Grant> },
}

/// Permission for one request about one chunk.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub chunk: ChunkHash,
    /// Of the chunk. The store accepts no other number, or the broker deletes what has another.
    pub bytes: u64,
    /// Signed: whoever knows it can make the request until it expires.
    pub url: String,
    /// The request must have these, too.
    pub headers: Vec<(String, String)>,
}

/// The address is a secret.
impl fmt::Debug for Grant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Grant({})", self.chunk)
    }
}
