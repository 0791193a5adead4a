//! The machine repairman model in closed form: people never sleep, and a hand-over takes no time.
//!
//! It verifies the chains, and it is what a reader who knows queueing theory will first compare them with.

use crate::rates::Rates;

#[derive(Debug, Clone, PartialEq)]
pub struct Repairman {
    /// The mean share of the time in which a GPU runs cells.
    pub utilisation: f64,
    /// Cells per second.
    pub throughput: f64,
    /// Mean seconds from submission to start.
    pub wait: f64,
    /// For each number of cells, the probability that this many wait.
    pub line: Vec<f64>,
    /// For each number of cells, the probability that a new submission finds this many waiting or running.
    found: Vec<f64>,
    gpus: usize,
    execution: f64,
}

/// Solves the model for people who only edit (`submission`) and run (`execution`) on `gpus` GPUs.
#[must_use]
pub fn repairman(rates: &Rates, people: usize, gpus: usize) -> Repairman {
    let ready = ready(rates, people, gpus);
    let mean = |what: &dyn Fn(usize) -> usize| -> f64 {
        let of = |(count, part): (usize, &f64)| part * what(count) as f64;
        ready.iter().enumerate().map(of).sum()
    };
    let busy = mean(&|count| count.min(gpus));
    let waiting = mean(&|count| count.saturating_sub(gpus));
    let throughput = busy * rates.execution;
    let at_most = |count: usize| ready.iter().take(count + 1).sum::<f64>();
    Repairman {
        utilisation: busy / gpus as f64,
        throughput,
        wait: waiting / throughput,
        line: [at_most(gpus)]
            .into_iter()
            .chain(ready.iter().skip(gpus + 1).copied())
            .collect(),
        // A person who submits finds the GPUs as if the others were alone.
        found: self::ready(rates, people - 1, gpus),
        gpus,
        execution: rates.execution,
    }
}

impl Repairman {
    /// The share of cells that wait longer than `seconds`: until all cells before it, and one of
    /// the running ones, have ended.
    #[must_use]
    pub fn longer_than(&self, seconds: f64) -> f64 {
        let expected = self.gpus as f64 * self.execution * seconds;
        let (mut ends, mut fewer) = ((-expected).exp(), 0.0);
        let mut longer = 0.0;
        for (before, part) in self.found.iter().skip(self.gpus).enumerate() {
            fewer += ends;
            longer += part * fewer;
            ends *= expected / (before + 1) as f64;
        }
        longer
    }
}

/// For each number of cells, the probability that this many wait or run.
fn ready(rates: &Rates, people: usize, gpus: usize) -> Vec<f64> {
    let mut weights = vec![1.0];
    for ready in 0..people {
        let ends = (ready + 1).min(gpus) as f64 * rates.execution;
        let more = (people - ready) as f64 * rates.submission / ends;
        weights.push(weights[ready] * more);
        if weights[ready + 1] > 1e200 {
            weights.iter_mut().for_each(|weight| *weight *= 1e-200);
        }
    }
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}
