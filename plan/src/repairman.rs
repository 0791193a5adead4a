//! The machine repairman in closed form: nobody sleeps and a hand-over takes no time.
//!
//! It checks the chains, and is the first thing that a reader who knows queues will compare them with.

use crate::rates::Rates;

#[derive(Debug, Clone, PartialEq)]
pub struct Repairman {
    /// The mean part of the time that a GPU runs cells.
    pub utilisation: f64,
    /// Cells a second.
    pub throughput: f64,
    /// Mean seconds from submission to start.
    pub wait: f64,
    /// How likely so many cells wait.
    pub line: Vec<f64>,
    /// How likely who submits finds so many cells that wait or run.
    found: Vec<f64>,
    gpus: usize,
    execution: f64,
}

/// People who only edit (`submission`) and run (`execution`) on `gpus` GPUs.
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
        // Who submits sees what the others would do alone.
        found: self::ready(rates, people - 1, gpus),
        gpus,
        execution: rates.execution,
    }
}

impl Repairman {
    /// The part of cells that wait longer than `seconds`: for the ends of all cells before it and of one that runs.
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

/// How likely so many cells wait or run.
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
