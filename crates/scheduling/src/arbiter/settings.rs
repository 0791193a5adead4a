//! What a site may choose.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Settings {
    /// GPU time of a cell at which it leaves each level but the lowest.
    pub levels: [Duration; 3],
    /// How long a cell of the lowest level computes before the next of that level has its turn.
    pub slice: Duration,
    /// The part of the time that is the lowest level's where somebody waits in it, from 0 to 1.
    pub guaranteed_share: f64,
    /// How long it computes undisturbed when that part is overdue.
    pub guaranteed_slice: Duration,
    /// How long even a cell of the highest level waits then.
    pub guaranteed_floor: Duration,
    /// What somebody used counts half after this time.
    pub half_life: Duration,
    /// A session whose memory was moved in computes at least this many times as long as the move took.
    pub swap_floor: f64,
    /// How many cells of the lowest level may compute together where all their memory fits.
    pub together: usize,
    /// How long a session may take to come to rest.
    pub drain_limit: Duration,
    /// Bytes in a second of the slowest move. Whose takes longer, and `drain_limit` beyond it, does not move.
    pub slowest_move: u64,
    /// Memory leaves the GPU in parts of at most so many bytes. So up to as many more leave than were to.
    pub part_bytes: u64,
    /// Places on the host are pinned ahead for at most so many bytes at a time; with 0 none are.
    pub pin_bytes: u64,
    /// The longest pause before a session is asked again that pinned less than it was asked for.
    pub pin_retry: Duration,
    /// How long a session without a cell may take to free what its libraries hold, before its memory is moved.
    pub trim_limit: Duration,
    /// A session without a cell sleeps after this.
    pub sleeps_after: Duration,
    /// When to try again where somebody else's memory was in the way.
    pub retry: Duration,
    /// How long the driver may take until it has the memory of a process that ended.
    pub late: Duration,
    /// For tests of moves: with a seed, each session that rests loses some of its memory to the host, needed or not, and
    /// places for all of it are pinned ahead.
    pub torture: Option<u64>,
    pub memory: Memory,
}

#[derive(Debug, Clone)]
pub struct Memory {
    /// Of the GPU, that sessions may use.
    pub usable_bytes: u64,
    /// Kept free for who comes next, by moving out sessions that sleep.
    pub reserve_bytes: u64,
    /// Of the host, for what is moved out, until it is said how much there is.
    pub host_bytes: u64,
}

impl Settings {
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        Self {
            levels: [1, 4, 16].map(Duration::from_secs),
            slice: Duration::from_secs(64),
            guaranteed_share: 0.1,
            guaranteed_slice: Duration::from_secs(2),
            guaranteed_floor: Duration::from_millis(500),
            half_life: Duration::from_secs(600),
            swap_floor: 2.0,
            together: 2,
            drain_limit: Duration::from_secs(30),
            slowest_move: 256 << 20,
            part_bytes: 64 << 20,
            pin_bytes: 256 << 20,
            pin_retry: Duration::from_secs(60),
            trim_limit: Duration::from_millis(200),
            sleeps_after: Duration::from_secs(300),
            retry: Duration::from_secs(1),
            late: Duration::from_secs(5),
            torture: None,
            memory,
        }
    }
}
