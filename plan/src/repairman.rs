//! The machine repairman in closed form: nobody sleeps and a hand-over takes no time.
//!
//! It checks the chains, and is the first thing that a reader who knows queues will compare them with.

use crate::rates::Rates;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repairman {
    /// The mean part of the time that a GPU runs cells.
    pub utilisation: f64,
    /// Cells a second.
    pub throughput: f64,
    /// Mean seconds from submission to start.
    pub wait: f64,
}

/// People who only edit (`submission`) and run (`execution`) on `gpus` GPUs.
#[must_use]
pub fn repairman(rates: &Rates, people: usize, gpus: usize) -> Repairman {
    let mut weight = 1.0;
    let (mut total, mut busy, mut line) = (0.0, 0.0, 0.0);
    for ready in 0..=people {
        let running = ready.min(gpus) as f64;
        total += weight;
        busy += weight * running;
        line += weight * (ready as f64 - running);
        let next = (ready + 1).min(gpus) as f64;
        weight *= (people - ready) as f64 * rates.submission / (next * rates.execution);
        if total > 1e200 {
            [weight, total, busy, line] = [weight, total, busy, line].map(|value| value * 1e-200);
        }
    }
    let throughput = busy / total * rates.execution;
    Repairman {
        utilisation: busy / total / gpus as f64,
        throughput,
        wait: line / total / throughput,
    }
}
