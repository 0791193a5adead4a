//! The model's answer for one number of people and GPUs.

use crate::{rates::Rates, wait::Waits};

#[derive(Debug)]
pub struct Answer {
    pub people: usize,
    pub gpus: usize,
    /// The mean share of the time in which a GPU runs cells.
    pub utilisation: f64,
    /// Cells per second.
    pub throughput: f64,
    /// Mean seconds from submission to start.
    pub wait: f64,
    /// Mean seconds from submission to end.
    pub response: f64,
    /// For each number of people, the probability that this many wait at any moment.
    pub line: Vec<f64>,
    pub waits: Waits,
}

impl Answer {
    /// `busy`: the mean number of running cells.
    pub(crate) fn new(
        people: usize,
        gpus: usize,
        rates: &Rates,
        busy: f64,
        line: Vec<f64>,
        waits: Waits,
    ) -> Self {
        let throughput = busy * rates.execution;
        let waiting = mean(&line);
        Self {
            people,
            gpus,
            utilisation: busy / gpus as f64,
            throughput,
            wait: waiting / throughput,
            response: (waiting + busy) / throughput,
            line,
            waits,
        }
    }
}

/// The mean of a number, from the probabilities that it is 0, 1, 2 and so on.
pub(crate) fn mean(parts: &[f64]) -> f64 {
    let of = |(number, part): (usize, &f64)| number as f64 * part;
    parts.iter().enumerate().map(of).sum()
}
