//! How students work: when they come, how long they think, and how long their cells run.

use rand::{RngExt, rngs::Xoshiro256PlusPlus as Random};
use rand_distr::{Distribution, LogNormal};

const SECOND: f64 = 1000.0;
const MINUTE: f64 = 60.0 * SECOND;

/// What is the same for all students of one lecture. All times are in milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct Habits {
    pub(crate) students: usize,
    pub(crate) workers: usize,
    pub(crate) slots: u32,
    /// The number of sessions that a worker keeps warm.
    pub(crate) warm: usize,
    /// For each cell of the notebook, in its original version.
    medians: Vec<f64>,
    thinking: f64,
    /// Every student's first cell is submitted within this time.
    arrivals: f64,
    cold: f64,
}

/// One student, and the cell that runs next.
#[derive(Debug, Clone)]
pub(crate) struct Student {
    pace: f64,
    pub(crate) cell: usize,
    /// How often the code was changed, and how that changed its duration.
    pub(crate) version: u64,
    factor: f64,
}

impl Habits {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let students = random.random_range(12..=40);
        let cells = random.random_range(8..=16);
        let usual = random.random_range(4.0..12.0) * SECOND;
        let workers = random.random_range(1..=4);
        Self {
            students,
            workers,
            slots: random.random_range(1..=2),
            warm: 6,
            medians: (0..cells)
                .map(|_| (usual * around(1.1, random)).min(8.0 * MINUTE))
                .collect(),
            thinking: random.random_range(25.0..90.0) * SECOND,
            arrivals: random.random_range(2.0..15.0) * MINUTE,
            cold: random.random_range(3.0..9.0) * SECOND,
        }
    }

    pub(crate) fn arrival(&self, random: &mut Random) -> u64 {
        (self.arrivals * random.random::<f64>()) as u64
    }

    /// The time from the assignment to the start of the cell.
    pub(crate) fn start(&self, cold: bool, random: &mut Random) -> u64 {
        let median = if cold { self.cold } else { 0.2 * SECOND };
        (median * around(0.35, random)) as u64
    }
}

impl Student {
    pub(crate) fn draw(random: &mut Random) -> Self {
        Self {
            pace: around(0.4, random),
            cell: 0,
            version: 0,
            factor: 1.0,
        }
    }

    /// The time until the next cell is submitted.
    pub(crate) fn thinks(&self, habits: &Habits, random: &mut Random) -> u64 {
        let time = match random.random::<f64>() {
            // The notebook's next cells were queued with this one.
            0.0..0.25 => 0.3 * SECOND,
            0.25..0.96 => habits.thinking * self.pace * around(0.8, random),
            _ => 8.0 * MINUTE * around(0.5, random),
        };
        time as u64
    }

    /// Moves on to another cell, or changes this one.
    pub(crate) fn goes_on(&mut self, habits: &Habits, random: &mut Random) {
        if random.random::<f64>() < 0.5 {
            self.cell = (self.cell + 1) % habits.medians.len();
            self.version = 0;
            self.factor = 1.0;
        } else if random.random::<f64>() < 0.6 {
            self.version += 1;
            self.factor = around(0.6, random);
        }
    }

    pub(crate) fn runs(&self, habits: &Habits, random: &mut Random) -> u64 {
        let median = habits.medians[self.cell] * self.factor;
        (median * around(0.2, random)).max(200.0) as u64
    }
}

/// A factor with median 1.
fn around(spread: f64, random: &mut Random) -> f64 {
    let factor = LogNormal::new(0.0, spread).expect("a spread is a number");
    factor.sample(random)
}

/// A time drawn repeatedly until it is longer than what has already passed.
pub(crate) fn longer_than(passed: u64, mut draw: impl FnMut() -> u64) -> u64 {
    let drawn = std::iter::repeat_with(&mut draw).take(1000);
    let mut drawn = drawn.filter(|time| *time > passed);
    drawn.next().unwrap_or(passed + passed / 2 + 1)
}
