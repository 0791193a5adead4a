//! The arbiter's settings.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The GPU time at which a cell falls from each level to the next.
    pub levels: [Duration; 3],
    /// How long a cell of the lowest level computes before the next cell of that level may.
    pub slice: Duration,
    /// The share of time that the lowest level gets while a cell waits in it, from 0 to 1.
    pub guaranteed_share: f64,
    /// How long a cell of the lowest level computes undisturbed when that share is overdue.
    pub guaranteed_slice: Duration,
    /// How long even a cell of the highest level then waits.
    pub guaranteed_floor: Duration,
    /// A person's recent use counts half after this time.
    pub half_life: Duration,
    /// After a swap-in, a session computes for at least this multiple of the time that the move took.
    pub swap_floor: f64,
    /// How many cells of the lowest level may compute together if all their memory fits.
    pub together: usize,
    /// How long a session may take to finish its work in flight after a preemption, and to leave the GPU before
    /// another one is chosen as well.
    pub drain_limit: Duration,
    /// The slowest acceptable speed of a move, in bytes per second. A session that takes longer than that and
    /// `drain_limit` together is ended.
    pub slowest_move: u64,
    /// Memory leaves the GPU in parts of at most this many bytes. So up to one part more may leave than was
    /// requested.
    pub part_bytes: u64,
    /// Places on the host are pinned ahead for at most this many bytes at a time; 0 turns this off.
    pub pin_bytes: u64,
    /// The longest pause before the next request to a session that pinned less than requested.
    pub pin_retry: Duration,
    /// How long a session without a cell may take to free memory that its libraries hold, before its memory is
    /// moved.
    pub trim_limit: Duration,
    /// A session without a cell sleeps after this.
    pub sleeps_after: Duration,
    /// How long to wait before trying again when other memory was in the way.
    pub retry: Duration,
    /// How long the driver may take to get back the memory of a process that ended.
    pub late: Duration,
    /// For tests of moves: with a seed, sessions that rest move random parts of their memory to the host,
    /// needed or not, and places for all memory are pinned ahead.
    pub torture: Option<u64>,
    pub memory: Memory,
}

#[derive(Debug, Clone)]
pub struct Memory {
    /// How much of the GPU's memory sessions may use.
    pub usable_bytes: u64,
    /// Kept free for the next session, by moving out sessions that sleep.
    pub reserve_bytes: u64,
    /// Host memory for swapped-out memory, until the worker reports how much there is.
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

    /// The level of a cell that has used this much GPU time; 0 is the highest.
    pub(crate) fn level(&self, attained: Duration) -> usize {
        level(&self.levels, attained)
    }

    pub(crate) fn lowest(&self) -> usize {
        self.levels.len()
    }

    /// GPU time until a cell falls to the next level.
    pub(crate) fn until_next_level(&self, attained: Duration) -> Option<Duration> {
        let limit = self.levels.get(self.level(attained))?;
        Some(*limit - attained)
    }
}

pub(crate) fn level(levels: &[Duration], attained: Duration) -> usize {
    let is_past = |limit: &&Duration| attained >= **limit;
    levels.iter().filter(is_past).count()
}
