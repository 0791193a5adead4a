//! Between a worker and a proxy on the same machine: the memory transport.
//!
//! One Unix socket for each proxy, in a folder that only its user can enter, with frames as in [`crate::shim`].
//! The worker asks once on each connection; a frame that carries a [`Bundle`] carries its file, too.

use crate::{HeldKey, snapshot::Delta};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// The XXH3-128 of each block of this many bytes tells what has changed; the last block of a segment may be shorter.
pub const BLOCK_BYTES: usize = 4 << 10;

/// What a file in memory means, and the digests of what lies in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    pub delta: Delta,
    /// 16 bytes, little endian, for each block of each patch of each segment, in the order of the delta.
    pub digests: ByteBuf,
}

/// A bundle with its file, where both are so small that they travel inside of another message.
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
    /// What the cell changed, for the notebook whose state has this key. Answered with `Taken` or `Unknown`.
    Deposit {
        key: HeldKey,
        /// How the worker will call it in the job's last event.
        result: HeldKey,
        bundle: Bundle,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHolder {
    Bundle(Bundle),
    Taken {},
    /// Nothing has this key, or no longer: the cell may have been given up.
    Unknown {},
}
