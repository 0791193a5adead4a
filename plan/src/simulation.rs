//! What no chain can express: measured or long-tailed times, memory that must be moved, and the
//! real rules by which GPUs are shared.
//!
//! Each run simulates one course, event by event, from one seed. Runs are independent, so together
//! they show how certain their mean is ([`Estimate`]).

mod course;
mod first_come;
mod fleet;
mod people;
mod sharing;
mod statistics;
mod times;

pub use course::{Course, OwnCell, PastWaits};
pub use fleet::{
    Fleet, FleetAnswer, Group, MachineKind, Machines, Pool, Used, Waited, fleet, lesson,
};
pub use sharing::{Class, LONG, PINNING, Policy, SHORT, Shared, share};
pub use statistics::Estimate;
pub use times::Times;

use crate::on_all_cores;
use statistics::Spread;

/// The times of one person, in seconds.
#[derive(Debug, Clone)]
pub struct Life {
    pub edit: Times,
    pub run: Times,
    /// The hand-over of a GPU, from a holder who is not ready to the person who waits.
    pub hand_over: Times,
    /// From arrival to departure, drawn again after each cell.
    pub stay: Times,
    pub away: Times,
}

/// The length of one run, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// The time before counting begins.
    pub warm_up: f64,
    pub measured: f64,
}

/// The number of runs, and the first seed.
#[derive(Debug, Clone, Copy)]
pub struct Runs {
    pub count: usize,
    pub seed: u64,
}

/// Like [`crate::Answer`], but estimated.
#[derive(Debug)]
pub struct Simulated {
    pub cells: u64,
    pub utilisation: Estimate,
    /// Cells per second.
    pub throughput: Estimate,
    pub wait: Estimate,
    pub response: Estimate,
    /// The share of cells that do not wait.
    pub at_once: Estimate,
    /// The waits within which 50, 90 and 99 of 100 cells start.
    pub waits: [Estimate; 3],
    /// Shares of cells, each with the wait that they exceed.
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

/// Simulates GPUs that are handed over in order of arrival.
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
