//! What stands where in the file of a card: numbers of 64 bits, and bytes that processes lock.

/// Indices of numbers.
pub const MEMORY: usize = 0;
pub const OVERLAPS: usize = 1;
pub const KERNELS: usize = 2;
pub const LOST: usize = 3;
pub const SLICES: usize = 4;
/// Bytes that each context takes.
pub const CONTEXT: usize = 5;
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

/// Offsets of bytes: who changes the ledger, who computes, and from here on by slot who lives.
pub const LEDGER: i64 = 1 << 20;
pub const PROCESSORS: i64 = LEDGER + 1;
pub const ALIVE: i64 = LEDGER + 100;
