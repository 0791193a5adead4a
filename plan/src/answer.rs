//! What an administrator asks about one number of people and GPUs.

use crate::{rates::Rates, wait::Waits};

#[derive(Debug)]
pub struct Answer {
    pub people: usize,
    pub gpus: usize,
    /// The mean part of the time that a GPU runs cells.
    pub utilisation: f64,
    /// Cells a second.
    pub throughput: f64,
    /// Mean seconds from submission to start.
    pub wait: f64,
    /// Mean seconds from submission to end.
    pub response: f64,
    pub waits: Waits,
}

impl Answer {
    /// `busy` and `line`: how many cells run and how many wait, on average.
    pub(crate) fn new(
        people: usize,
        gpus: usize,
        rates: &Rates,
        busy: f64,
        line: f64,
        waits: Waits,
    ) -> Self {
        let throughput = busy * rates.execution;
        Self {
            people,
            gpus,
            utilisation: busy / gpus as f64,
            throughput,
            wait: line / throughput,
            response: (line + busy) / throughput,
            waits,
        }
    }
}
