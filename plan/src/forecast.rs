//! What an administrator is told about so many people and GPUs: exactly, or where the chain is too large, simulated.

use crate::{
    answer::Answer,
    rates::Rates,
    shared,
    simulation::{Length, Life, Runs, Simulated, first_come},
};

/// Waits are told at these parts of cells.
pub const PARTS: [f64; 3] = [0.5, 0.9, 0.99];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Exact,
    Simulated,
}

/// Times are in seconds.
#[derive(Debug, Clone)]
pub struct Forecast {
    pub people: usize,
    pub gpus: usize,
    pub method: Method,
    /// The mean part of the time that a GPU runs cells.
    pub utilisation: f64,
    /// Cells a second.
    pub throughput: f64,
    /// The part of cells that start at once.
    pub at_once: f64,
    pub wait: f64,
    pub response: f64,
    /// Within which the [`PARTS`] of cells start.
    pub waits: [f64; 3],
    /// Seconds and the part of cells that wait longer, for a plot.
    pub curve: Vec<(f64, f64)>,
}

/// How much of an answer is worth waiting for.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Larger chains are simulated; see [`shared::work`].
    pub most_work: usize,
    /// Cells of a simulation, about.
    pub cells: f64,
}

impl Effort {
    /// Some seconds at most: 500 people and one GPU are solved exactly.
    pub const THOROUGH: Self = Self {
        most_work: 400_000,
        cells: 1e6,
    };
    /// A part of a second, for one of many questions.
    pub const QUICK: Self = Self {
        most_work: 20_000,
        cells: 2e5,
    };
    /// For a page that somebody else's program draws again and again.
    pub const LIGHT: Self = Self {
        cells: 1e5,
        ..Self::QUICK
    };
}

const CURVE: usize = 80;
const RUNS: Runs = Runs { count: 10, seed: 1 };

/// Simulated is also a chain that was not solved to twelve digits.
#[must_use]
pub fn forecast(rates: &Rates, people: usize, gpus: usize, effort: Effort) -> Forecast {
    let is_small = shared::work(people, gpus) <= effort.most_work;
    let answer = is_small.then(|| shared::solve(rates, people, gpus));
    match answer.flatten() {
        Some(answer) => Forecast::from(&answer),
        None => simulated(&rates.life(), people, gpus, effort),
    }
}

/// By simulation, with any times.
#[must_use]
pub fn simulated(life: &Life, people: usize, gpus: usize, effort: Effort) -> Forecast {
    let cycle = life.edit.mean() + life.run.mean();
    let most_a_second = (people as f64 / cycle).min(gpus as f64 / life.run.mean());
    let measured = effort.cells / RUNS.count as f64 / most_a_second;
    let warm_up = measured / 5.0;
    let length = Length { warm_up, measured };
    let told = first_come(life, people, gpus, length, RUNS);
    Forecast::of_simulation(people, gpus, &told)
}

impl From<&Answer> for Forecast {
    fn from(answer: &Answer) -> Self {
        let waits = PARTS.map(|part| answer.waits.percentile(part));
        let end = 1.2 * waits[2];
        let point = |number: usize| {
            let seconds = end * number as f64 / CURVE as f64;
            (seconds, answer.waits.longer_than(seconds))
        };
        Self {
            people: answer.people,
            gpus: answer.gpus,
            method: Method::Exact,
            utilisation: answer.utilisation,
            throughput: answer.throughput,
            at_once: answer.waits.none(),
            wait: answer.wait,
            response: answer.response,
            waits,
            curve: (0..=CURVE).map(point).collect(),
        }
    }
}

impl Forecast {
    /// The part of cells that wait longer than so many seconds, from the curve.
    #[must_use]
    pub fn longer_than(&self, seconds: f64) -> f64 {
        let after = self.curve.partition_point(|(time, _)| *time <= seconds);
        let (Some(before), Some(after)) = (self.curve[..after].last(), self.curve.get(after))
        else {
            return 0.0;
        };
        let part = (seconds - before.0) / (after.0 - before.0);
        before.1 + part * (after.1 - before.1)
    }

    fn of_simulation(people: usize, gpus: usize, told: &Simulated) -> Self {
        let longer = (told.longer.iter()).map(|(part, wait)| (wait.mean, *part));
        let begin = (0.0, 1.0 - told.at_once.mean);
        Self {
            people,
            gpus,
            method: Method::Simulated,
            utilisation: told.utilisation.mean,
            throughput: told.throughput.mean,
            at_once: told.at_once.mean,
            wait: told.wait.mean,
            response: told.response.mean,
            waits: told.waits.map(|wait| wait.mean),
            curve: [begin]
                .into_iter()
                .chain(longer.filter(|(wait, _)| *wait > 0.0))
                .collect(),
        }
    }
}
