//! The layout of a card's file: 64-bit numbers, and bytes that processes lock. Further cards of a machine have
//! their files in the same folder.

use std::path::{Path, PathBuf};

/// The beginning of a card's name; its number has twelve digits.
pub const UUID: &str = "GPU-00000000-0000-0000-0000-";

/// The file of the card with this number.
#[must_use]
pub fn card_at(first: &Path, number: usize) -> PathBuf {
    match number {
        0 => first.to_owned(),
        _ => first.with_file_name(format!("card-{number}")),
    }
}

/// What the driver keeps of a card for itself, in addition to the memory of programs.
pub const RESERVED_BYTES: u64 = 24 << 20;

/// Indices of numbers.
pub const MEMORY: usize = 0;
pub const OVERLAPS: usize = 1;
pub const KERNELS: usize = 2;
pub const LOST: usize = 3;
pub const SLICES: usize = 4;
/// Bytes that each context takes.
pub const CONTEXT: usize = 5;
/// Bytes that each module takes, and each function when it is first launched.
pub const CODE: usize = 6;
/// Each process has a slot of two numbers: its bytes, and how many kernels it has on the card.
pub const FIRST_SLOT: usize = 8;
pub const SLOTS: usize = 120;
/// For each slot: the id of its process.
pub const FIRST_PROCESS: usize = FIRST_SLOT + 2 * SLOTS;

/// For each slot: whether its process is locked, or off the card (a checkpoint).
pub const FIRST_STATE: usize = FIRST_PROCESS + SLOTS;
pub const RUNNING: u64 = 0;
pub const LOCKED: u64 = 1;
pub const CHECKPOINTED: u64 = 2;
/// Off the card for good, because a restore has failed. The driver calls this state a checkpoint, too.
pub const NOT_RESTORED: u64 = 3;

/// While this is not 0, kernels of the name `held` do not end.
pub const HELD: usize = FIRST_STATE + SLOTS;
/// How many calls wait for the GPU now.
pub const WAITING: usize = HELD + 1;
/// Bytes of pinned memory that forks copied.
pub const COPIED: usize = WAITING + 1;
/// How often a call named a context, a stream or an event that had ended.
pub const STALE: usize = COPIED + 1;
/// Bytes of host memory that programs have pinned through the driver, including programs that were killed.
pub const PINNED: usize = STALE + 1;

/// Offsets of the bytes to lock: for changes of the ledger, for computing and, from `ALIVE` on, one for each
/// slot while its process lives.
pub const LEDGER: i64 = 1 << 20;
pub const PROCESSORS: i64 = LEDGER + 1;
pub const ALIVE: i64 = LEDGER + 100;
