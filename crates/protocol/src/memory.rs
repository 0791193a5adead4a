//! Between a worker and a proxy on the same machine: the memory transport.
//!
//! Each proxy has one Unix socket, in a folder that only its user can enter, with frames as in [`crate::shim`].
//! The worker sends one request on each connection. A frame that carries a [`Bundle`] carries its file, too.

use crate::{HeldKey, snapshot::Delta};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Changes are detected by the XXH3-128 of each block of this many bytes; the last block of a
/// segment may be shorter.
pub const BLOCK_BYTES: usize = 4 << 10;

/// Describes a file in memory, and holds the digests of its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    pub delta: Delta,
    /// 16 bytes, little endian, for each block of each patch of each segment, in the order of the delta.
    pub digests: ByteBuf,
}

/// A bundle with its file, both small enough to be part of another message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enclosed {
    pub bundle: Bundle,
    pub file: ByteBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHolder {
    /// Answered with `Bundle` or `Unknown`.
    Fetch { key: HeldKey },
    /// The cell's changes, for the notebook whose state has this key. Answered with `Taken` or `Unknown`.
    Deposit {
        key: HeldKey,
        /// The key that the worker will use in the job's last event.
        result: HeldKey,
        bundle: Bundle,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHolder {
    Bundle(Bundle),
    Taken {},
    /// There is nothing with this key, or no longer: the cell may have been given up.
    Unknown {},
}
