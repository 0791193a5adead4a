//! GPUs and the sessions on them under a policy of sharing.
//!
//! Which cell begins next, and on which GPU, is decided by the broker's own `order`, and who computes on a GPU by the
//! workers' own `arbiter`: both are called here as they are there.

mod line;
mod world;

use std::time::Duration;

use baton_scheduling::arbiter::{Memory, Settings};

use super::{Estimate, Length, Runs, Times, each_seed};
use world::{Seen, World};

/// People who share GPUs; each has one session, which stays on its GPU while that one takes its cells.
#[derive(Debug, Clone)]
pub struct Class {
    pub people: usize,
    pub gpus: usize,
    /// How many cells each GPU takes at once, to take turns on it; all others wait at the broker.
    pub slots: u32,
    pub edit: Times,
    /// GPU time of a cell.
    pub run: Times,
    pub session_bytes: u64,
    pub gpu_bytes: u64,
    /// Between GPU and host, each way; bytes a second.
    pub bandwidth: f64,
    /// Bytes a second for which places on the host are made and pinned, before memory leaves the GPU for the first time.
    pub pinning: f64,
    /// From being told to stop until nothing is in flight, in seconds.
    pub drain: f64,
    /// Until a session with the notebook's state has begun on another GPU, in seconds.
    pub cold: f64,
}

impl Class {
    /// Thirty people on one large GPU, who try many small things and train now and then: 88 % of the cells are short,
    /// and 1.5 % long, which are two thirds of the work.
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

/// One thread on an H200 took 0.39 s for each GiB. Several threads do it while memory moves, which nobody has measured.
pub const PINNING: f64 = (1_u64 << 30) as f64 / 0.39;

/// Who computes when. All are ways to set the same order and the same arbiter, so they differ in nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Each cell to its end, in order of arrival.
    FirstCome,
    /// Everybody in turn, for so many seconds.
    RoundRobin(f64),
    /// As on a worker.
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

/// Below this many seconds of GPU time a cell is short, above [`LONG`] it is long.
pub const SHORT: f64 = 5.0;
pub const LONG: f64 = 60.0;

/// What a class sees of its GPUs.
#[derive(Debug)]
pub struct Shared {
    pub cells: u64,
    /// From submission to end of short cells, in seconds: mean, and within which 50, 95 and 99 of 100 lie.
    pub short: [Estimate; 4],
    /// How many times as long as alone on the GPU the others take.
    pub medium_slowdown: Estimate,
    pub long_slowdown: Estimate,
    /// The part of cells that began on another GPU than the last one of that notebook.
    pub moved: Estimate,
    /// The part of the time that somebody computes on a GPU.
    pub utilisation: Estimate,
}

/// Cells of `class` under `policy`.
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
