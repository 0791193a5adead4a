//! What no chain can say: times as they were measured or with a long tail, memory that must be moved, and the rules by
//! which GPUs are really shared.
//!
//! Each run is one course, event by event, from one seed; runs are independent, and together they say how sure their
//! mean is ([`Estimate`]).

mod course;
mod first_come;
mod people;
mod pool;
mod sharing;
mod statistics;
mod times;

pub use course::{Course, OwnCell, PastWaits};
pub use pool::{Elastic, ElasticAnswer, elastic};
pub use sharing::{Class, LONG, PINNING, Policy, SHORT, Shared, share};
pub use statistics::Estimate;
pub use times::Times;

use crate::on_all_cores;
use statistics::Spread;

/// One person's life, in seconds.
#[derive(Debug, Clone)]
pub struct Life {
    pub edit: Times,
    pub run: Times,
    /// Of a GPU, from a holder who is not ready to who waits.
    pub hand_over: Times,
    /// From coming to going, drawn anew after each cell.
    pub stay: Times,
    pub away: Times,
}

/// Of one run, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Before anything is counted.
    pub warm_up: f64,
    pub measured: f64,
}

/// How often, and from which numbers on.
#[derive(Debug, Clone, Copy)]
pub struct Runs {
    pub count: usize,
    pub seed: u64,
}

/// As [`crate::Answer`], estimated.
#[derive(Debug)]
pub struct Simulated {
    pub cells: u64,
    pub utilisation: Estimate,
    /// Cells a second.
    pub throughput: Estimate,
    pub wait: Estimate,
    pub response: Estimate,
    /// The part of cells that do not wait.
    pub at_once: Estimate,
    /// Waits within which 50, 90 and 99 of 100 cells start.
    pub waits: [Estimate; 3],
    /// Parts of cells, and the wait than which they wait longer.
    pub longer: Vec<(f64, Estimate)>,
}

/// What one run counted.
#[derive(Debug)]
struct Run {
    seconds: f64,
    busy: f64,
    cells: u64,
    waits: Spread,
    responses: Spread,
}

impl Run {
    fn new(seconds: f64) -> Self {
        Self {
            seconds,
            busy: 0.0,
            cells: 0,
            waits: Spread::new(),
            responses: Spread::new(),
        }
    }
}

/// GPUs that are passed on in order of arrival.
#[must_use]
pub fn first_come(
    life: &Life,
    people: usize,
    gpus: usize,
    length: Length,
    runs: Runs,
) -> Simulated {
    let runs = each_seed(runs, |seed| {
        first_come::run(life, people, gpus, length, seed)
    });
    let estimate = |what: &dyn Fn(&Run) -> f64| Estimate::of(runs.iter().map(what));
    Simulated {
        cells: runs.iter().map(|run| run.cells).sum(),
        utilisation: estimate(&|run| run.busy / run.seconds / gpus as f64),
        throughput: estimate(&|run| run.cells as f64 / run.seconds),
        wait: estimate(&|run| run.waits.mean()),
        response: estimate(&|run| run.responses.mean()),
        at_once: estimate(&|run| run.waits.zero()),
        longer: (1..100)
            .map(|percent| 1.0 - f64::from(percent) / 100.0)
            .map(|longer| (longer, estimate(&|run| run.waits.percentile(1.0 - longer))))
            .collect(),
        waits: [0.5, 0.9, 0.99].map(|part| estimate(&|run| run.waits.percentile(part))),
    }
}

/// The results in the order of their seeds.
fn each_seed<R: Send>(runs: Runs, run: impl Fn(u64) -> R + Sync) -> Vec<R> {
    let seeds: Vec<u64> = (0..runs.count as u64)
        .map(|number| runs.seed + number)
        .collect();
    on_all_cores(&seeds, |seed| run(*seed))
}
