//! GPUs and their sessions under a sharing policy.
//!
//! The broker's own queue decides which cell begins next, and on which GPU. The worker's own
//! `arbiter` decides who computes on a GPU. Both are called here exactly as in those programs.

mod queue;
mod world;

use super::{Estimate, Length, Runs, Times, each_seed};
use baton_scheduling::arbiter::{Memory, Settings};
use std::time::Duration;
use world::{Seen, World};

/// People who share GPUs. Each has one session, which stays on its GPU while that GPU runs the person's cells.
#[derive(Debug, Clone)]
pub struct Class {
    pub people: usize,
    pub gpus: usize,
    /// How many cells share each GPU in turns; all others wait at the broker.
    pub slots: u32,
    pub edit: Times,
    /// GPU time of a cell.
    pub run: Times,
    pub session_bytes: u64,
    pub gpu_bytes: u64,
    /// The speed of moves between GPU and host in each direction, in bytes per second.
    pub bandwidth: f64,
    /// Bytes per second at which host memory is made and pinned, before memory leaves the GPU for the first time.
    pub pinning: f64,
    /// Seconds from the request to stop until no work is in flight.
    pub drain: f64,
    /// Seconds until a session with the notebook's state has begun on another GPU.
    pub cold: f64,
}

impl Class {
    /// Thirty people on one large GPU who try many small things and sometimes train: 88 % of the
    /// cells are short; 1.5 % are long and make up two thirds of the work.
    #[must_use]
    pub fn practical() -> Self {
        let cells = [(0.88, 0.7, 0.7), (0.105, 15.0, 0.6), (0.015, 400.0, 0.5)];
        let times = |(weight, median, spread)| (weight, Times::LogNormal { median, spread });
        Self {
            people: 30,
            gpus: 1,
            slots: 30,
            edit: Times::Exponential(90.0),
            run: Times::Mix(cells.map(times).to_vec()),
            session_bytes: 4_000_000_000,
            gpu_bytes: 140_000_000_000,
            bandwidth: 50e9,
            pinning: PINNING,
            drain: 0.02,
            cold: 5.0,
        }
    }
}

/// One thread on an H200 took 0.39 s for each GiB. During moves, several threads now do this; their speed has
/// not been measured.
pub const PINNING: f64 = (1_u64 << 30) as f64 / 0.39;

/// Decides who computes when. All policies are settings of the same queue and the same arbiter, so
/// they differ in nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Runs each cell to its end, in order of arrival.
    FirstCome,
    /// Gives each person a turn of this many seconds.
    RoundRobin(f64),
    /// The policy of a worker.
    Baton,
}

impl Policy {
    fn settings(self, memory: Memory) -> Settings {
        let ours = Settings::new(memory);
        let slice = match self {
            Self::Baton => return ours,
            Self::FirstCome => Duration::from_secs(1_000_000_000),
            Self::RoundRobin(slice) => Duration::from_secs_f64(slice),
        };
        Settings {
            levels: [Duration::ZERO; 3],
            slice,
            guaranteed_share: 0.0,
            half_life: Duration::from_nanos(1),
            swap_floor: 0.0,
            together: 1,
            ..ours
        }
    }
}

/// A cell with less GPU time than this many seconds is short; above [`LONG`] it is long.
pub const SHORT: f64 = 5.0;
pub const LONG: f64 = 60.0;

/// What the people of a class experience.
#[derive(Debug)]
pub struct Shared {
    pub cells: u64,
    /// Seconds from submission to end of short cells: the mean, and the times within which 50, 95
    /// and 99 of 100 end.
    pub short: [Estimate; 4],
    /// How many times longer the other cells take than alone on the GPU.
    pub medium_slowdown: Estimate,
    pub long_slowdown: Estimate,
    /// The share of cells that began on another GPU than the notebook's previous one.
    pub moved: Estimate,
    /// The share of the time in which a session computes on a GPU.
    pub utilisation: Estimate,
}

/// Simulates the cells of `class` under `policy`.
#[must_use]
pub fn share(class: &Class, policy: Policy, length: Length, runs: Runs) -> Shared {
    let runs = each_seed(runs, |seed| World::new(class, policy, length, seed).run());
    let estimate = |what: &dyn Fn(&Seen) -> f64| Estimate::of(runs.iter().map(what));
    let short = |part: f64| estimate(&|seen| seen.short.percentile(part));
    Shared {
        cells: runs.iter().map(|seen| seen.cells).sum(),
        short: [
            estimate(&|seen| seen.short.mean()),
            short(0.5),
            short(0.95),
            short(0.99),
        ],
        medium_slowdown: estimate(&|seen| seen.medium.mean()),
        long_slowdown: estimate(&|seen| seen.long.mean()),
        moved: estimate(&|seen| seen.moved as f64 / (seen.cells as f64).max(1.0)),
        utilisation: estimate(&|seen| seen.busy / length.measured / class.gpus as f64),
    }
}
