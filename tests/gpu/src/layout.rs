//! What stands where in the file of a card: numbers of 64 bits, and bytes that processes lock. A machine's further cards
//! have files beside the first one's.

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

/// Indices of numbers.
pub const MEMORY: usize = 0;
pub const OVERLAPS: usize = 1;
pub const KERNELS: usize = 2;
pub const LOST: usize = 3;
pub const SLICES: usize = 4;
/// Bytes that each context takes.
pub const CONTEXT: usize = 5;
/// Bytes that a module takes, and each function when it is launched first.
pub const CODE: usize = 6;
/// Each process has a slot of two: its bytes, and how many kernels it has there.
pub const FIRST_SLOT: usize = 8;
pub const SLOTS: usize = 120;
/// By slot: whose it is.
pub const FIRST_PROCESS: usize = FIRST_SLOT + 2 * SLOTS;

/// By slot: whether its process is locked, or off the card (a checkpoint).
pub const FIRST_STATE: usize = FIRST_PROCESS + SLOTS;
pub const RUNNING: u64 = 0;
pub const LOCKED: u64 = 1;
pub const CHECKPOINTED: u64 = 2;

/// While it is not 0, kernels of the name `held` do not end.
pub const HELD: usize = FIRST_STATE + SLOTS;
/// How many calls wait for the GPU now.
pub const WAITING: usize = HELD + 1;
/// Bytes of pinned memory that forks copied.
pub const COPIED: usize = WAITING + 1;
/// How often a call named a context, a stream or an event that had ended.
pub const STALE: usize = COPIED + 1;
/// Bytes of the host that programs have pinned through the driver now, and those that were killed.
pub const PINNED: usize = STALE + 1;

/// Offsets of bytes: who changes the ledger, who computes, and from here on by slot who lives.
pub const LEDGER: i64 = 1 << 20;
pub const PROCESSORS: i64 = LEDGER + 1;
pub const ALIVE: i64 = LEDGER + 100;
