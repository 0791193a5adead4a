//! The prediction for a number of people and GPUs: exact, or simulated if the chain is too large.

use crate::{
    answer::Answer,
    rates::Rates,
    shared,
    simulation::{Length, Life, Runs, Simulated, first_come},
    wait::Waits,
};

/// Waits are reported for these shares of cells.
pub const PARTS: [f64; 3] = [0.5, 0.9, 0.99];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Exact,
    Simulated,
}

/// An answer without its percentiles, which take longer to find than everything else.
#[derive(Debug)]
pub enum Solution {
    Exact(Answer),
    Simulated(Forecast),
}

/// Times are in seconds.
#[derive(Debug)]
pub struct Forecast {
    pub people: usize,
    pub gpus: usize,
    pub method: Method,
    /// The mean share of the time in which a GPU runs cells.
    pub utilisation: f64,
    /// Cells per second.
    pub throughput: f64,
    /// The share of cells that start at once.
    pub at_once: f64,
    pub wait: f64,
    pub response: f64,
    /// The times within which the [`PARTS`] of cells start.
    pub waits: [f64; 3],
    distribution: Distribution,
}

#[derive(Debug)]
enum Distribution {
    Exact(Waits),
    /// Seconds, and the share of cells that wait longer.
    Simulated(Vec<(f64, f64)>),
}

/// How much work an answer is worth.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Larger chains are simulated; see [`shared::work`].
    pub most_work: usize,
    /// The approximate number of cells in a simulation.
    pub cells: f64,
}

impl Effort {
    /// A few seconds at most: 500 people and one GPU are solved exactly.
    pub const THOROUGH: Self = Self {
        most_work: 400_000,
        cells: 1e6,
    };
    /// A fraction of a second, for one of many questions.
    pub const QUICK: Self = Self {
        most_work: 20_000,
        cells: 2e5,
    };
    /// For a page that is redrawn frequently.
    pub const LIGHT: Self = Self {
        cells: 1e5,
        ..Self::QUICK
    };
}

const CURVE: usize = 80;
const RUNS: Runs = Runs { count: 10, seed: 1 };

#[must_use]
pub fn forecast(rates: &Rates, people: usize, gpus: usize, effort: Effort) -> Forecast {
    solution(rates, people, gpus, effort).into()
}

/// The wait in seconds that one in a hundred cells exceeds.
#[must_use]
pub fn p99_wait(rates: &Rates, people: usize, gpus: usize, effort: Effort) -> f64 {
    forecast(rates, people, gpus, effort).waits[2]
}

/// The fewest GPUs with which 99 of 100 cells start within this many seconds.
#[must_use]
pub fn fewest_gpus(rates: &Rates, people: usize, within: f64, effort: Effort) -> usize {
    let is_enough = |gpus: usize| p99_wait(rates, people, gpus, effort) <= within;
    // With a GPU for each person, no one waits. Fewer GPUs never shorten waits.
    let (mut too_few, mut enough) = (0, people.max(1));
    let mut step = 1;
    while too_few + step < enough && !is_enough(too_few + step) {
        too_few += step;
        step *= 2;
    }
    enough = enough.min(too_few + step);
    while enough - too_few > 1 {
        let middle = usize::midpoint(too_few, enough);
        match is_enough(middle) {
            true => enough = middle,
            false => too_few = middle,
        }
    }
    enough
}

/// Falls back to simulation also if the chain was not solved to twelve digits.
#[must_use]
pub fn solution(rates: &Rates, people: usize, gpus: usize, effort: Effort) -> Solution {
    let is_small = shared::work(people, gpus) <= effort.most_work;
    let answer = is_small.then(|| shared::solve(rates, people, gpus));
    match answer.flatten() {
        Some(answer) => Solution::Exact(answer),
        None => Solution::Simulated(simulated(&rates.life(), people, gpus, effort)),
    }
}

/// Simulates, with times of any distribution.
#[must_use]
pub fn simulated(life: &Life, people: usize, gpus: usize, effort: Effort) -> Forecast {
    let cycle = life.edit.mean() + life.run.mean();
    let most_a_second = (people as f64 / cycle).min(gpus as f64 / life.run.mean());
    let measured = effort.cells / RUNS.count as f64 / most_a_second;
    let warm_up = measured / 5.0;
    let length = Length { warm_up, measured };
    let simulated = first_come(life, people, gpus, length, RUNS);
    Forecast::of_simulation(people, gpus, &simulated)
}

impl Solution {
    #[must_use]
    pub fn people(&self) -> usize {
        match self {
            Self::Exact(answer) => answer.people,
            Self::Simulated(forecast) => forecast.people,
        }
    }

    /// The mean wait in seconds.
    #[must_use]
    pub fn wait(&self) -> f64 {
        match self {
            Self::Exact(answer) => answer.wait,
            Self::Simulated(forecast) => forecast.wait,
        }
    }

    /// Whether the last of the [`PARTS`] of cells start within this many seconds.
    #[must_use]
    pub fn starts_within(&self, seconds: f64) -> bool {
        let [.., part] = PARTS;
        match self {
            Self::Exact(answer) => answer.waits.longer_than(seconds) <= 1.0 - part,
            Self::Simulated(Forecast {
                waits: [.., wait], ..
            }) => *wait <= seconds,
        }
    }
}

impl From<Solution> for Forecast {
    fn from(solution: Solution) -> Self {
        match solution {
            Solution::Exact(answer) => Self::from(answer),
            Solution::Simulated(forecast) => forecast,
        }
    }
}

impl From<Answer> for Forecast {
    fn from(answer: Answer) -> Self {
        Self {
            people: answer.people,
            gpus: answer.gpus,
            method: Method::Exact,
            utilisation: answer.utilisation,
            throughput: answer.throughput,
            at_once: answer.waits.none(),
            wait: answer.wait,
            response: answer.response,
            waits: PARTS.map(|part| answer.waits.percentile(part)),
            distribution: Distribution::Exact(answer.waits),
        }
    }
}

impl Forecast {
    /// Points of a plot: seconds, and the share of cells that wait longer.
    #[must_use]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let waits = match &self.distribution {
            Distribution::Exact(waits) => waits,
            Distribution::Simulated(curve) => return curve.clone(),
        };
        let end = 1.2 * self.waits[2];
        let point = |number: usize| {
            let seconds = end * number as f64 / CURVE as f64;
            (seconds, waits.longer_than(seconds))
        };
        (0..=CURVE).map(point).collect()
    }

    /// The share of cells that wait longer than this.
    #[must_use]
    pub fn longer_than(&self, seconds: f64) -> f64 {
        match &self.distribution {
            Distribution::Exact(waits) => waits.longer_than(seconds),
            Distribution::Simulated(curve) => at(curve, seconds),
        }
    }

    fn of_simulation(people: usize, gpus: usize, simulated: &Simulated) -> Self {
        let longer = (simulated.longer.iter()).map(|(part, wait)| (wait.mean, *part));
        let begin = (0.0, 1.0 - simulated.at_once.mean);
        Self {
            people,
            gpus,
            method: Method::Simulated,
            utilisation: simulated.utilisation.mean,
            throughput: simulated.throughput.mean,
            at_once: simulated.at_once.mean,
            wait: simulated.wait.mean,
            response: simulated.response.mean,
            waits: simulated.waits.map(|wait| wait.mean),
            distribution: Distribution::Simulated(
                [begin]
                    .into_iter()
                    .chain(longer.filter(|(wait, _)| *wait > 0.0))
                    .collect(),
            ),
        }
    }
}

/// Interpolates linearly between the points; zero after the last.
fn at(curve: &[(f64, f64)], seconds: f64) -> f64 {
    let after = curve.partition_point(|(time, _)| *time <= seconds);
    let (Some(before), Some(after)) = (curve[..after].last(), curve.get(after)) else {
        return 0.0;
    };
    let part = (seconds - before.0) / (after.0 - before.0);
    before.1 + part * (after.1 - before.1)
}
